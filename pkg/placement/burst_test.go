// SPDX-License-Identifier: Apache-2.0

package placement_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/gpushare/dra-driver-gpushare/deviceclasses"
	"github.com/gpushare/dra-driver-gpushare/internal/allocatortest"
	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/devices"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
	"github.com/gpushare/dra-driver-gpushare/pkg/mode"
	"github.com/gpushare/dra-driver-gpushare/pkg/placement"
)

// node is a node whose shares are spread: the scheduler's allocator allocates from what is
// published, and what it allocated is granted some time later, in any order.
type node struct {
	*testing.T
	machine *gpu.Machine
	real    *allocatortest.Node
	// allocated and granted are the shares of each GPU, in GiB.
	allocated, granted [][]int64
	// late are shares that are allocated and not granted yet, by GPU.
	late []late
	// wanted is what the node was told of.
	wanted placement.Wanted
}

type late struct {
	gpu   int
	units int64
}

func newNode(t *testing.T, gpus int, memory int64) *node {
	t.Helper()
	n := &node{T: t, machine: &gpu.Machine{}, allocated: make([][]int64, gpus), granted: make([][]int64, gpus)}
	for i := range gpus {
		n.machine.GPUs = append(n.machine.GPUs, gpu.GPU{Index: i, UUID: fmt.Sprintf("GPU-%d", i), MemoryMiB: memory << 10})
	}
	classes, err := deviceclasses.Modes()
	expect.NoError(t, err)
	n.real = allocatortest.NewNode("n", v1alpha1.DriverName, devices.Build(n.machine, n.options()), classes)
	return n
}

// options are how the GPUs are published by what is granted now.
func (n *node) options() devices.Options {
	var all []placement.Shared
	var plain []placement.GPU
	largest := int64(0)
	for i, g := range n.machine.GPUs {
		granted := gpu.Amount{Units: sum(n.granted[i]), Shares: int64(len(n.granted[i]))}
		plain = append(
			plain,
			placement.GPU{Index: i, Memory: g.MemoryUnits(), Used: granted.Units, Full: granted.Units == g.MemoryUnits()},
		)
		all = append(
			all,
			placement.Shared{GPU: plain[i], Room: gpu.Amount{Units: g.MemoryUnits(), Shares: 20}, Granted: granted},
		)
		largest = max(largest, slices.Max(append([]int64{0}, n.granted[i]...)))
	}
	limits := map[string]gpu.Amount{}
	for i, limit := range placement.Limits(all, largest, n.wanted) {
		limits[n.machine.GPUs[i].UUID] = limit
	}
	return devices.Options{Pool: "n/gpu", Mode: mode.Share, Slots: 20, Order: placement.Spread(plain), Limits: limits}
}

func (n *node) publish() { n.real.Publish(devices.Build(n.machine, n.options())) }

// allocate has the scheduler look for a share, and reports whether it found one.
func (n *node) allocate(units int64) bool {
	n.Helper()
	if !n.allocateOf(1, units) {
		return false
	}
	n.even()
	return true
}

// allocateOf is allocate of several shares or none, of GPUs that the selectors match, whether that is even or not.
func (n *node) allocateOf(shares int, units int64, selectors ...resourceapi.DeviceSelector) bool {
	n.Helper()
	claim := resourceapi.DeviceClaim{Requests: []resourceapi.DeviceRequest{{
		Name: "gpu", Exactly: &resourceapi.ExactDeviceRequest{
			DeviceClassName: "share.gpu.aliyun.com", AllocationMode: resourceapi.DeviceAllocationModeExactCount, Count: 1,
			Selectors: selectors,
			Capacity: &resourceapi.CapacityRequirements{Requests: map[resourceapi.QualifiedName]resource.Quantity{
				v1alpha1.CapMemory: *resource.NewQuantity(units<<30, resource.BinarySI),
			}},
		},
	}}}
	var results []resourceapi.DeviceRequestAllocationResult
	for range shares {
		one, err := n.real.Allocate(n.Context(), claim)
		expect.NoError(n, err)
		if one == nil {
			n.real.Release(results)
			return false
		}
		results = append(results, one...)
	}
	for _, r := range results {
		indices, _, err := devices.ParseDeviceName(r.Device)
		expect.NoError(n, err)
		n.allocated[indices[0]] = append(n.allocated[indices[0]], units)
		n.late = append(n.late, late{indices[0], units})
	}
	return true
}

// grant prepares some of what is allocated, in any order.
func (n *node) grant(random *rand.Rand, most int) {
	for range min(most, len(n.late)) {
		i := random.IntN(len(n.late))
		n.granted[n.late[i].gpu] = append(n.granted[n.late[i].gpu], n.late[i].units)
		n.late = slices.Delete(n.late, i, i+1)
	}
}

func (n *node) taken() []int64 {
	var taken []int64
	for _, shares := range n.allocated {
		taken = append(taken, sum(shares))
	}
	return taken
}

func (n *node) even() {
	n.Helper()
	taken := n.taken()
	largest := slices.Max(slices.Concat(n.allocated...))
	if slices.Max(taken)-slices.Min(taken) > largest {
		n.Fatalf("%v GiB are taken, of which the largest share is %d", taken, largest)
	}
}

func sum(of []int64) int64 {
	var all int64
	for _, units := range of {
		all += units
	}
	return all
}

// Whatever is asked for, however much of it at once and however late the node learns of it,
// the GPUs stay even; and who waits while nothing is under way would find no room if nothing
// were held back.
func TestBurstsStayEven(t *testing.T) {
	rounds := 20
	if testing.Short() {
		rounds = 5
	}
	for seed := range uint64(rounds) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			random := rand.New(rand.NewPCG(seed, 1))
			n := newNode(t, 2+random.IntN(7), []int64{15, 31, 80}[random.IntN(3)])
			sizes := 1 + random.Int64N(n.machine.GPUs[0].MemoryUnits()/2)
			var waiting []int64
			for range 40 {
				switch random.IntN(4) {
				case 0:
					for range random.IntN(12) {
						waiting = append(waiting, 1+random.Int64N(sizes))
					}
				case 1:
					n.grant(random, random.IntN(8))
				case 2:
					n.publish()
				case 3:
					waiting = slices.DeleteFunc(waiting, n.allocate)
				}
			}
			for {
				n.grant(random, len(n.late))
				n.publish()
				before := len(waiting)
				waiting = slices.DeleteFunc(waiting, n.allocate)
				if len(waiting) == before {
					break
				}
			}
			for _, units := range waiting {
				if n.machine.GPUs[0].MemoryUnits()-slices.Min(n.taken()) >= units {
					t.Errorf("a share of %d waits while %v of %d are taken", units, n.taken(), n.machine.GPUs[0].MemoryUnits())
				}
			}
		})
	}
}

// A Deployment of the documents' size takes one write for each round of the GPUs.
func TestRounds(t *testing.T) {
	n := newNode(t, 4, 15)
	random := rand.New(rand.NewPCG(1, 1))
	writes := 0
	for left := 8; left > 0; writes++ {
		n.grant(random, len(n.late))
		n.publish()
		before := left
		for left > 0 && n.allocate(4) {
			left--
		}
		if left == before {
			t.Fatalf("%d wait for ever", left)
		}
	}
	expect.Equal(t, 2, writes, "writes")
}

// What evenness keeps from those that wait is lifted for them within half a minute: beside shares that are never
// prepared, on a GPU that is ahead, for a gang that needs several at once. The GPUs stay as even as that allows, and
// those that come later make them even again.
func TestLiftsServeWhoWaits(t *testing.T) {
	first := []resourceapi.DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{
		Expression: `device.attributes["gpu.aliyun.com"].?index.orValue(-1) == 0`}}}
	for name, test := range map[string]struct {
		// stuck are shares of 2 GiB that are allocated before and never prepared.
		stuck int
		// waiting are shares of 2 GiB, gang of them at once.
		waiting, gang int
		selectors     []resourceapi.DeviceSelector
		want          []int64
	}{
		"beside one that never starts": {1, 7, 1, nil, []int64{4, 4, 4, 4}},
		"where none ever starts":       {4, 4, 1, nil, []int64{4, 4, 4, 4}},
		"on the first GPU":             {0, 3, 1, first, []int64{6, 0, 0, 0}},
		"a gang":                       {0, 8, 8, nil, []int64{4, 4, 4, 4}},
		"a large gang":                 {0, 20, 20, nil, []int64{10, 10, 10, 10}},
	} {
		t.Run(name, func(t *testing.T) {
			n, random := newNode(t, 4, 15), rand.New(rand.NewPCG(1, 1))
			for range test.stuck {
				n.allocateOf(1, 2)
			}
			stuck := n.late
			n.late = nil
			var lifts placement.Lifts
			for left, second, changed := test.waiting, 0, 0; left > 0; second++ {
				lifts = lifts.Next(true, at(changed), at(second))
				n.wanted = placement.Wanted{One: gpu.Amount{Units: 2, Shares: 1}, Lifted: lifts.Shares(at(second))}
				n.publish()
				for left > 0 && n.allocateOf(test.gang, 2, test.selectors...) {
					left -= test.gang
					changed = second
				}
				n.grant(random, len(n.late))
				if second-changed > 30 {
					t.Fatalf("%d wait in vain for half a minute; %v GiB are taken", left, n.taken())
				}
			}
			expect.Equal(t, test.want, n.taken(), "GiB taken")
			n.late, n.wanted = stuck, placement.Wanted{}
			for range 100 {
				n.grant(random, len(n.late))
				n.publish()
				n.allocateOf(1, 1)
			}
			expect.Equal(t, []int64{15, 15, 15, 15}, n.taken(), "GiB taken in the end")
		})
	}
}
