package slices_test

import (
	"fmt"
	"math/rand/v2"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/dynamic-resource-allocation/resourceslice"
	"k8s.io/klog/v2/ktesting"
	"k8s.io/utils/ptr"

	"github.com/gpushare/dra-driver-gpushare/deviceclasses"
	"github.com/gpushare/dra-driver-gpushare/internal/allocatortest"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
	"github.com/gpushare/dra-driver-gpushare/pkg/mode"
	"github.com/gpushare/dra-driver-gpushare/pkg/slices"
)

const dynamicSlots = 6

func plainCards(n int) *gpu.Machine {
	m := &gpu.Machine{}
	for i := range n {
		m.GPUs = append(m.GPUs, gpu.GPU{Index: i, UUID: fmt.Sprintf("GPU-%d", i), Model: "Tesla-V100-SXM2-16GB", MemoryMiB: 16130})
	}
	return m
}

// dynamicPool is what a dynamic node publishes with its cards so far taken.
func dynamicPool(m *gpu.Machine, loads map[string]slices.Load) resourceslice.DriverResources {
	var options []slices.Options
	for _, personality := range mode.Dynamic.Personalities() {
		options = append(options, slices.Options{Pool: "n1/gpu", Mode: personality, Slots: dynamicSlots, Isolation: "none", Order: slices.HeldFirst(m, loads)})
	}
	return slices.BuildDynamic(m, options)
}

func dynamicNode(t *testing.T, m *gpu.Machine) *allocatortest.Node {
	t.Helper()
	classes, err := deviceclasses.Modes()
	if err != nil {
		t.Fatal(err)
	}
	return allocatortest.NewNode("n1", slices.DriverName, dynamicPool(m, nil), classes)
}

func TestFirstClaimDecidesOnACard(t *testing.T) {
	n := dynamicNode(t, plainCards(3))
	_, ctx := ktesting.NewTestContext(t)
	take := func(m mode.Mode, a amounts, want string) []resourceapi.DeviceRequestAllocationResult {
		t.Helper()
		results, err := n.Allocate(ctx, claimOf(request("r", m, a)))
		if err != nil {
			t.Fatal(err)
		}
		got := ""
		if len(results) > 0 {
			got = results[0].Device
		}
		if got != want {
			t.Errorf("a claim of mode %s for %v got %q, want %q", m, a, got, want)
		}
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

// Whatever comes and goes, in whatever order: a card is in one mode, it is not
// granted more than it has, and a claim is turned away only if no card has room.
func TestRandomClaimsNeverMixModesOnACard(t *testing.T) {
	const rounds = 3000
	m := plainCards(8)
	n := dynamicNode(t, m)
	_, ctx := ktesting.NewTestContext(t)
	random := rand.New(rand.NewPCG(3, 4))
	modes := mode.Dynamic.Personalities()
	held := map[int][]resourceapi.DeviceRequestAllocationResult{}
	refused := 0
	for round := range rounds {
		if len(held) > 0 && random.IntN(100) < 48 {
			// The oldest, or one in the midst.
			id := random.IntN(round)
			if results, ok := held[id]; ok {
				n.Release(results)
				delete(held, id)
			}
		} else {
			wanted := modes[random.IntN(len(modes))]
			a, memory, cores := someAmounts(random, wanted)
			results, err := n.Allocate(ctx, claimOf(request("r", wanted, a)))
			if err != nil {
				t.Fatal(err)
			}
			room := roomFor(cardsOf(t, held), wanted, memory, cores, len(m.GPUs))
			if (len(results) > 0) != room {
				t.Fatalf("round %d: a claim of mode %s for %v got %v, and there is room: %t", round, wanted, a, results, room)
			}
			if results != nil {
				held[round] = results
			} else {
				refused++
			}
		}
		use := cardsOf(t, held)
		loads := map[string]slices.Load{}
		for index, u := range use {
			loads[fmt.Sprintf("GPU-%d", index)] = slices.Load{Units: u.memory}
			if u.memory > 15 || u.cores > 100 || u.claims > dynamicSlots || u.mode == mode.Exclusive && u.claims > 1 {
				t.Fatalf("round %d: card %d holds %+v", round, index, u)
			}
		}
		n.Publish(dynamicPool(m, loads))
	}
	if refused == 0 {
		t.Error("the node was never full")
	}
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

type cardUse struct {
	mode          mode.Mode
	claims        int
	memory, cores int64
}

// cardsOf adds up what is held of each card, and fails where that is in two modes.
func cardsOf(t *testing.T, held map[int][]resourceapi.DeviceRequestAllocationResult) map[int]cardUse {
	t.Helper()
	use := map[int]cardUse{}
	for _, results := range held {
		indices, m, err := slices.ParseDeviceName(results[0].Device)
		if err != nil {
			t.Fatal(err)
		}
		index := indices[0]
		u := use[index]
		if u.claims > 0 && u.mode != m {
			t.Fatalf("card %d is held in the modes %s and %s", index, u.mode, m)
		}
		memory, cores := results[0].ConsumedCapacity["memory"], results[0].ConsumedCapacity["cores"]
		u.mode, u.claims = m, u.claims+1
		u.memory += memory.Value() / slices.GiB
		u.cores += cores.Value()
		if m == mode.Exclusive {
			u.memory = 15
		}
		use[index] = u
	}
	return use
}

func roomFor(use map[int]cardUse, m mode.Mode, memory, cores int64, n int) bool {
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

// A monitor sees a card that is in use in the mode in which it is used. In the
// other modes it does not fit: the scheduler counts cards for it, too.
func TestMonitorsOfADynamicNode(t *testing.T) {
	n := dynamicNode(t, plainCards(2))
	if got := allocate(t, n, claimOf(request("r", mode.Share, amounts{"memory": "15Gi"}))); got != "gpu-0-share" {
		t.Fatalf("got %q", got)
	}
	for m, want := range map[mode.Mode]string{mode.Share: "gpu-0-share", mode.MPS: "gpu-1-mps", mode.Exclusive: "gpu-1"} {
		monitor := request("monitor", m, nil)
		monitor.Exactly.AdminAccess = ptr.To(true)
		if m != mode.Exclusive {
			monitor.Exactly.Capacity = &resourceapi.CapacityRequirements{Requests: map[resourceapi.QualifiedName]resource.Quantity{
				"memory": resource.MustParse("0"), "slots": resource.MustParse("0"),
			}}
		}
		_, ctx := ktesting.NewTestContext(t)
		results, err := n.Allocate(ctx, claimOf(monitor))
		if err != nil || len(results) != 1 {
			t.Fatalf("mode %s: %v, %v", m, results, err)
		}
		if results[0].Device != want {
			t.Errorf("a monitor in mode %s got %s, want %s", m, results[0].Device, want)
		}
		n.Release(results)
	}
}
