// SPDX-License-Identifier: Apache-2.0

package prepare

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/utils/ptr"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
	"github.com/gpushare/dra-driver-gpushare/pkg/held"
	"github.com/gpushare/dra-driver-gpushare/pkg/mode"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/isolation"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/state"
)

// A scheduler can write an allocation long after the devices that it is from were
// closed, and replaced by those of another mode.
func TestPrepareRefusesDevicesOfAnotherMode(t *testing.T) {
	for name, tc := range map[string]struct {
		published mode.Mode
		device    string
		want      string
	}{
		"share where GPUs are whole": {mode.Exclusive, "gpu-0-share", `"gpu-0-share" of mode share, but the node has ` +
			`changed to mode exclusive since: delete the pod`},
		"whole GPU where it is shared":   {mode.Share, "gpu-0", "has changed to mode share"},
		"share with limits without them": {mode.Share, "gpu-0-cgpu", "has changed to mode share"},
		"set of GPUs":                    {mode.Exclusive, "gpus-0-1", "has changed to mode exclusive"},
		"GPU of a set on a dynamic one":  {mode.Dynamic, "gpu-0-topology", "has changed to mode dynamic"},
		"nothing is published":           {"", "gpu-0", "offers no GPUs now"},
		"share":                          {mode.Share, "gpu-0-share", ""},
		"share of a dynamic node":        {mode.Dynamic, "gpu-0-share", ""},
		"whole GPU of a dynamic node":    {mode.Dynamic, "gpu-0", ""},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t)
			n.published = tc.published
			c := sharesOf("u1", 0, 1)
			c.Status.Allocation.Devices.Results[0].Device = tc.device
			n.refuses(t, c, tc.want)
			if tc.want != "" {
				n.leavesNothing(t)
			}
		})
	}
}

// A monitor's claim does not hold the node's mode, and is not ended by its change.
func TestPrepareForAnAdministratorInAnyMode(t *testing.T) {
	n := newNode(t)
	n.published = mode.Exclusive
	monitor := sharesOf("u1", 0, 0)
	monitor.Status.Allocation.Devices.Results[0].AdminAccess = ptr.To(true)
	n.takes(t, monitor)
}

func TestWhatIsPreparedStaysSoInAnyMode(t *testing.T) {
	n := newNode(t)
	n.takes(t, sharesOf("u1", 0, 1))
	n.published = mode.Exclusive
	n.takes(t, sharesOf("u1", 0, 1))
}

// Between a claim's first check and its record the node may change its mode.
func TestModeThatChangesWhileAClaimIsPrepared(t *testing.T) {
	n := newNode(t)
	n.reserved = func(ctx context.Context, _ *gpu.Machine) (held.Reserved, error) {
		return held.Reserved{}, n.WithNodeLocked(ctx, func([]state.Record) error {
			n.published = mode.Exclusive
			return nil
		})
	}
	n.refuses(t, sharesOf("u1", 0, 1), "has changed to mode exclusive")
	n.leavesNothing(t)
}

// While the node waits to isolate its GPUs in another way, claims that are
// allocated get what they were offered.
func TestPrepareIsolatesAsPublished(t *testing.T) {
	n := newNode(t)
	n.options.Isolation = isolation.NewRegistry(isolation.Config{MPSDir: t.TempDir(), CGPUProc: t.TempDir()})
	n.published, n.isolated = mode.CGPU, map[mode.Mode]string{mode.CGPU: "mps"}
	c := sharesOf("u1", 0, 1)
	c.Status.Allocation.Devices.Results[0].Device = "gpu-0-cgpu"
	n.refuses(t, c, "could not be limited by mps")
	n.isolated = map[mode.Mode]string{mode.CGPU: "cgpu"}
	n.reserved = func(context.Context, *gpu.Machine) (held.Reserved, error) {
		n.isolated = map[mode.Mode]string{mode.CGPU: "mps"}
		return held.Reserved{}, nil
	}
	n.refuses(t, c, "changed from cgpu to mps at this moment")
	n.isolated, n.reserved = nil, nil
	n.takes(t, c) // isolation is not remembered
}

// On a node that is closed for a change of its mode no claim is prepared that tolerates
// that; one that does not was allocated before, and what is prepared stays so.
func TestClosedNodeTakesNoClaimThatToleratesIt(t *testing.T) {
	n := newNode(t)
	tolerating := func(uid string, index int) *resourceapi.ResourceClaim {
		c := wholeGPUs(uid, index)
		c.Status.Allocation.Devices.Results[0].Tolerations = []resourceapi.DeviceToleration{
			{Operator: resourceapi.DeviceTolerationOpExists}}
		return c
	}
	n.takes(t, tolerating("before", 0))
	n.draining = true
	for _, c := range []*resourceapi.ResourceClaim{tolerating("before", 0), wholeGPUs("late", 1)} {
		n.takes(t, c)
	}
	n.refuses(t, tolerating("after", 2), "takes no further claims, whatever they tolerate")
	monitor := tolerating("monitor", 3)
	monitor.Status.Allocation.Devices.Results[0].AdminAccess = ptr.To(true)
	n.takes(t, monitor)
	// MIG instances stay open, and hold no change up.
	n.has(cut(at(0, "MIG-a")))
	instance := instanceClaim("instance", "gpu-4-mig-1g-10gb-0")
	instance.Status.Allocation.Devices.Results[0].Tolerations =
		tolerating("", 0).Status.Allocation.Devices.Results[0].Tolerations
	n.takes(t, instance)
}

// What is recorded as a claim's limit, which status, metadata, metrics and audit use, is what it
// is held to: Alibaba's module works out its own, of all of the GPU's memory. So is what is recorded
// again after the record was lost, alone or with what the node knows of its own GPUs.
func TestLimitsAreWithoutWhatTheDriverKeeps(t *testing.T) {
	for isolatedBy, want := range map[string]int64{"none": 2982, "cgpu": 3072} {
		n := newNode(t)
		n.options.Isolation = isolation.NewRegistry(isolation.Config{MPSDir: t.TempDir(), CGPUProc: t.TempDir()})
		t4 := gpu.GPU{UUID: "GPU-0", MemoryMiB: 15360, ReservedMiB: 450}
		n.SetInventory(&Inventory{Machine: &gpu.Machine{GPUs: []gpu.GPU{t4}}, Base: fakeBase{}})
		c := sharesOf("u1", 0, 3)
		if isolatedBy == "cgpu" {
			n.published, n.isolated = mode.CGPU, map[mode.Mode]string{mode.CGPU: isolatedBy}
			c.Status.Allocation.Devices.Results[0].Device = "gpu-0-cgpu"
		}
		if got := n.prepared(t, c)[0].Grants[0]; got.CapMiB() != want || got.Isolation != isolatedBy {
			t.Errorf("3 of 15 GiB of a T4 by %s: %d MiB by %s, want %d", isolatedBy, got.CapMiB(), got.Isolation, want)
		}
		for range 2 {
			expect.NoError(t, os.Remove(filepath.Join(n.stateDir, "u1.json")))
			expect.NoError(t, n.repairer().Repair(t.Context()))
			if got := n.recordOf(t, "u1").Grants[0]; got.CapMiB() != want || got.Isolation != isolatedBy {
				t.Errorf("once it was lost: %d MiB by %s, want %d by %s", got.CapMiB(), got.Isolation, want, isolatedBy)
			}
			n.published, n.isolated, n.api.shown = "", nil, n.isolated
		}
	}
}
