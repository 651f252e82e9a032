// SPDX-License-Identifier: Apache-2.0

package devices_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/dynamic-resource-allocation/resourceslice"
	"k8s.io/klog/v2/ktesting"
	"k8s.io/utils/ptr"

	"github.com/gpushare/dra-driver-gpushare/deviceclasses"
	"github.com/gpushare/dra-driver-gpushare/internal/allocatortest"
	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/devices"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
	"github.com/gpushare/dra-driver-gpushare/pkg/mode"
	"github.com/gpushare/dra-driver-gpushare/pkg/placement"
)

const dynamicSlots = 6

func plainGPUs(n int) *gpu.Machine {
	m := &gpu.Machine{}
	for i := range n {
		m.GPUs = append(m.GPUs, gpu.GPU{Index: i, UUID: fmt.Sprintf("GPU-%d", i), Model: "Tesla-V100-SXM2-16GB",
			MemoryMiB: 16130})
	}
	return m
}

// dynamicPool is what a dynamic node publishes with its GPUs so far taken.
func dynamicPool(m *gpu.Machine, used map[string]int64) resourceslice.DriverResources {
	var gpus []placement.GPU
	for _, g := range m.GPUs {
		gpus = append(gpus, placement.GPU{Index: g.Index, Memory: g.MemoryUnits(), Used: used[g.UUID]})
	}
	var options []devices.Options
	for _, served := range mode.Dynamic.ServedModes() {
		options = append(options, devices.Options{Pool: "n1/gpu", Mode: served, Slots: dynamicSlots, Isolation: "none",
			Order: placement.Packed(gpus)})
	}
	return devices.BuildDynamic(m, options)
}

func dynamicNode(t testing.TB, m *gpu.Machine) *allocatortest.Node {
	t.Helper()
	return allocatortest.NewNode("n1", v1alpha1.DriverName, dynamicPool(m, nil), modeClasses(t))
}

func TestFirstClaimDecidesOnAGPU(t *testing.T) {
	n := dynamicNode(t, plainGPUs(3))
	_, ctx := ktesting.NewTestContext(t)
	take := func(m mode.Mode, a amounts, want string) []resourceapi.DeviceRequestAllocationResult {
		t.Helper()
		results, err := n.Allocate(ctx, claimOf(request("r", m, a)))
		expect.NoError(t, err)
		got := ""
		if len(results) > 0 {
			got = results[0].Device
		}
		expect.Equal(t, want, got, "a claim of mode %s for %v", m, a)
		return results
	}
	first := take(mode.Share, amounts{"memory": "7Gi"}, "gpu-0-share")
	take(mode.Exclusive, nil, "gpu-1")
	take(mode.CoreMem, amounts{"memory": "4Gi", "cores": "25"}, "gpu-2-core-mem")
	second := take(mode.Share, amounts{"memory": "8Gi"}, "gpu-0-share")
	take(mode.MPS, amounts{"memory": "1Gi"}, "")
	take(mode.Exclusive, nil, "")
	take(mode.CoreMem, amounts{"memory": "4Gi", "cores": "75"}, "gpu-2-core-mem")
	n.Release(first)
	take(mode.MPS, amounts{"memory": "1Gi"}, "")
	n.Release(second)
	take(mode.MPS, amounts{"memory": "1Gi"}, "gpu-0-mps")
	take(mode.Share, amounts{"memory": "1Gi"}, "")
}

// A request by model alone is for a whole GPU: of each GPU the scheduler tries one device.
func TestRequestByModelOnADynamicNode(t *testing.T) {
	const model = "Tesla-V100-SXM2-16GB"
	ofModel, err := deviceclasses.Model(model, nil)
	expect.NoError(t, err)
	byModel := claimOf(resourceapi.DeviceRequest{Name: "r", Exactly: &resourceapi.ExactDeviceRequest{
		DeviceClassName: deviceclasses.ModelClassName(model), AllocationMode: resourceapi.DeviceAllocationModeExactCount,
		Count: 1,
	}})
	for name, test := range map[string]struct {
		inUse   mode.Mode
		amounts amounts
		want    string
	}{
		"no GPU in use":            {"", nil, "gpu-0"},
		"a whole GPU":              {mode.Exclusive, nil, "gpu-0"},
		"a share":                  {mode.Share, amounts{"memory": "4Gi"}, "gpu-0"},
		"a share with a limit":     {mode.MPS, amounts{"memory": "4Gi"}, "gpu-0"},
		"a share that leaves none": {mode.Share, amounts{"memory": "15Gi"}, "gpu-0"},
		"memory and compute":       {mode.CoreMem, amounts{"memory": "4Gi", "cores": "25"}, "gpu-0"},
	} {
		t.Run(name, func(t *testing.T) {
			_, ctx := ktesting.NewTestContext(t)
			m, used := plainGPUs(2), map[string]int64{}
			n := allocatortest.NewNode("n1", v1alpha1.DriverName, dynamicPool(m, used), append(ofModel, modeClasses(t)...))
			if test.inUse != "" {
				before, err := n.Allocate(ctx, claimOf(request("r", mode.Exclusive, nil)))
				expect.NoError(t, err)
				expect.Equal(t, devices.DeviceName(1, test.inUse),
					n.Devices(t, claimOf(request("r", test.inUse, test.amounts))), "the claim before gets")
				n.Release(before)
				used["GPU-1"] = 4
				n.Publish(dynamicPool(m, used))
			}
			expect.Equal(t, test.want, n.Devices(t, byModel), "devices")
		})
	}
}

// Whatever comes and goes, in whatever order: a GPU is in one mode, it is not
// granted more than it has, and a claim is turned away only if no GPU has room.
func TestRandomClaimsNeverMixModesOnAGPU(t *testing.T) {
	seeds := []uint64{1, 2, 3, 4}
	if testing.Short() {
		seeds = seeds[:1]
	}
	for _, seed := range seeds {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			const rounds = 800
			h := history{n: dynamicNode(t, plainGPUs(8)), m: plainGPUs(8), random: rand.New(rand.NewPCG(seed, 0)),
				lastMode: map[int]mode.Mode{}}
			for round := range rounds {
				// The node fills, and empties again.
				if releases := 30 + 35*(round/100%2); len(h.held) > 0 && h.random.IntN(100) < releases {
					h.release()
				} else {
					h.claim(t)
				}
				h.check(t)
			}
			// A history in which little happens proves little.
			if h.granted < rounds/5 || h.released < rounds/5 || h.refused < rounds/20 || h.changed < rounds/20 {
				t.Errorf("%d claims granted, %d refused, %d released, %d times a GPU came to another mode", h.granted, h.refused,
					h.released, h.changed)
			}
		})
	}
}

// history is what has come and gone on a dynamic node.
type history struct {
	n      *allocatortest.Node
	m      *gpu.Machine
	random *rand.Rand
	held   [][]resourceapi.DeviceRequestAllocationResult

	granted, refused, released int
	// changed is how often a GPU came to another mode than it was in last.
	changed  int
	lastMode map[int]mode.Mode
}

func (h *history) release() {
	i := h.random.IntN(len(h.held))
	h.n.Release(h.held[i])
	h.held = slices.Delete(h.held, i, i+1)
	h.released++
}

// claim asks for a share, or a GPU, of a mode.
func (h *history) claim(t *testing.T) {
	t.Helper()
	_, ctx := ktesting.NewTestContext(t)
	modes := mode.Dynamic.ServedModes()
	wanted := modes[h.random.IntN(len(modes))]
	a, memory, cores := someAmounts(h.random, wanted)
	results, err := h.n.Allocate(ctx, claimOf(request("r", wanted, a)))
	expect.NoError(t, err)
	room := roomFor(gpusOf(t, h.held), wanted, memory, cores, len(h.m.GPUs))
	if (len(results) > 0) != room {
		t.Fatalf("a claim of mode %s for %v got %v, and there is room: %t", wanted, a, results, room)
	}
	if results == nil {
		h.refused++
		return
	}
	h.granted++
	h.held = append(h.held, results)
}

// check looks at the GPUs, and publishes them again.
func (h *history) check(t *testing.T) {
	t.Helper()
	used := map[string]int64{}
	for index, u := range gpusOf(t, h.held) {
		used[fmt.Sprintf("GPU-%d", index)] = u.memory
		if u.memory > 15 || u.cores > 100 || u.claims > dynamicSlots || u.mode == mode.Exclusive && u.claims > 1 {
			t.Fatalf("GPU %d holds %+v", index, u)
		}
		if last, ok := h.lastMode[index]; ok && last != u.mode {
			h.changed++
		}
		h.lastMode[index] = u.mode
	}
	h.n.Publish(dynamicPool(h.m, used))
}

func someAmounts(random *rand.Rand, m mode.Mode) (a amounts, memory, cores int64) {
	if m == mode.Exclusive {
		return nil, 15, 0
	}
	memory = 1 + random.Int64N(9)
	a = amounts{"memory": fmt.Sprintf("%dGi", memory)}
	if m == mode.CoreMem {
		cores = 5 * (1 + random.Int64N(12))
		a["cores"] = fmt.Sprint(cores)
	}
	return a, memory, cores
}

type gpuUse struct {
	mode          mode.Mode
	claims        int
	memory, cores int64
}

// gpusOf adds up what is held of each GPU, and fails where that is in two modes.
func gpusOf(t *testing.T, held [][]resourceapi.DeviceRequestAllocationResult) map[int]gpuUse {
	t.Helper()
	use := map[int]gpuUse{}
	for _, results := range held {
		indices, m, err := devices.ParseDeviceName(results[0].Device)
		expect.NoError(t, err)
		index := indices[0]
		u := use[index]
		if u.claims > 0 && u.mode != m {
			t.Fatalf("GPU %d is held in the modes %s and %s", index, u.mode, m)
		}
		memory, cores := results[0].ConsumedCapacity["memory"], results[0].ConsumedCapacity["cores"]
		u.mode, u.claims = m, u.claims+1
		u.memory += memory.Value() / devices.GiB
		u.cores += cores.Value()
		if m == mode.Exclusive {
			u.memory = 15
		}
		use[index] = u
	}
	return use
}

func roomFor(use map[int]gpuUse, m mode.Mode, memory, cores int64, n int) bool {
	for index := range n {
		u, used := use[index]
		if !used {
			return true
		}
		if u.mode == m && m != mode.Exclusive && u.claims < dynamicSlots && u.memory+memory <= 15 && u.cores+cores <= 100 {
			return true
		}
	}
	return false
}

// A monitor sees a GPU that is in use in the mode in which it is used. In the
// other modes it does not fit: the scheduler counts GPUs for it, too.
func TestMonitorsOfADynamicNode(t *testing.T) {
	n := dynamicNode(t, plainGPUs(2))
	expect.Equal(t, "gpu-0-share", n.Devices(t, claimOf(request("r", mode.Share, amounts{"memory": "15Gi"}))), "at first")
	for m, want := range map[mode.Mode]string{mode.Share: "gpu-0-share", mode.MPS: "gpu-1-mps", mode.Exclusive: "gpu-1"} {
		monitor := request("monitor", m, nil)
		if m != mode.Exclusive {
			monitor = request("monitor", m, amounts{"memory": "0", "slots": "0"})
		}
		monitor.Exactly.AdminAccess = ptr.To(true)
		expect.Equal(t, want, n.Devices(t, claimOf(monitor)), "a monitor in mode %s", m)
	}
}
