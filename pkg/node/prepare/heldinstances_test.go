// SPDX-License-Identifier: Apache-2.0

package prepare

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/state"
)

// Whose release a claim waits for is known whatever of the GPU they hold: they are looked at, for they may be orphans.
func TestWhoseInstanceIsInTheWay(t *testing.T) {
	whole := machine()
	whole.GPUs = append(whole.GPUs, gpu.GPU{Index: 4, UUID: "GPU-4", MemoryMiB: 81920})
	for name, tc := range map[string]struct {
		held   *resourceapi.ResourceClaim
		before *gpu.Machine
		// then is what becomes of the GPUs while the claim holds what it was granted.
		then   func(n *node, d *dynamicGPU)
		wanted *resourceapi.ResourceClaim
		want   string
	}{
		"one in a part of the place": {instanceClaim("q", elsewhere), nil, func(*node, *dynamicGPU) {},
			instanceClaim("p", fourOf), "cannot be made: 1g.10gb at slice 3 is in the way"},
		"one that somebody has destroyed": {instanceClaim("q", elsewhere), nil, func(n *node, d *dynamicGPU) {
			d.instances = nil
			n.has(d.machine())
		}, instanceClaim("p", fourOf), "holds GPU 4's 1g.10gb at slice 3, which is in the way"},
		"one with its id": {instanceClaim("q", "gpu-4-mig-1g-10gb-1"), cut(at(1, "MIG-b")),
			func(n *node, _ *dynamicGPU) { n.has(cut(at(1, "MIG-new"))) },
			instanceClaim("p", "gpu-4-mig-1g-10gb-1"), "holds the instance that was there before"},
		"one, of the whole GPU": {instanceClaim("q", "gpu-4-mig-1g-10gb-1"), cut(at(1, "MIG-b")),
			func(n *node, _ *dynamicGPU) { n.has(whole) },
			wholeGPUs("p", 4), "still holds an instance of it"},
		"the whole GPU, of one": {wholeGPUs("q", 4), whole,
			func(n *node, _ *dynamicGPU) { n.has(cut(at(1, "MIG-b"))) },
			instanceClaim("p", "gpu-4-mig-1g-10gb-1"), "holds the GPU as it was before"},
	} {
		t.Run(name, func(t *testing.T) {
			n, d := cuttingNode(t)
			if tc.before != nil {
				n.has(tc.before)
			}
			n.prepared(t, wholeGPUs("beside", 0), tc.held)
			tc.then(n, d)
			err := n.refuses(t, tc.wanted, tc.want)
			if by := HeldBy(err); !slices.Equal(by, []types.UID{"q"}) {
				t.Errorf("held by %q, want claim q", by)
			}
		})
	}
}

// Instances in two places can have one id. Containers that had the one could use the other, by the same device nodes.
func TestInstanceWithTheIDOfOneThatIsHeld(t *testing.T) {
	n, d := cuttingNode(t)
	held, wanted := instanceClaim("q", "gpu-4-mig-4g-40gb-0"), instanceClaim("p", "gpu-4-mig-3g-40gb-4")
	n.prepared(t, wholeGPUs("beside", 0), held)
	d.instances = nil
	n.has(d.machine())
	err := n.refuses(t, wanted, "make GPU 4's 3g.40gb at slices 4-7: claim team/claim-q holds the instance that was "+
		"there before (MIG-made-1), whose device nodes are the same")
	if by := HeldBy(err); !slices.Equal(by, []types.UID{"q"}) || ReasonOf(err) != ReasonInUse {
		t.Errorf("held by %q because of %s, want claim q and %s", by, ReasonOf(err), ReasonInUse)
	}
	if len(d.instances) > 0 || slices.Contains(n.files(t), "p.json") {
		t.Errorf("left: %+v %v", d.instances, n.files(t))
	}
	// What is known to be refused is not made for it again.
	d.fails = map[string]error{"make-gi": errors.New("one is made to be destroyed at once")}
	n.refuses(t, wanted, "whose device nodes are the same")
	d.fails = nil
	// No container has what is being destroyed.
	r := n.recordOf(t, "q")
	r.Phase = state.Preparing
	expect.NoError(t, n.options.Store.Put(r))
	n.takes(t, wanted) // once it is being destroyed
}

// What was made for a claim whose record has no UUID of it yet is destroyed with that claim, so nobody else gets it.
func TestInstanceThatIsStillToBeDestroyed(t *testing.T) {
	n, d := cuttingNode(t)
	d.fails = map[string]error{"make-ci": errors.New("unknown error"),
		"destroy": fmt.Errorf("destroying: %w", gpu.ErrInstanceInUse)}
	n.refuses(t, instanceClaim("q", oneSlice), "it stays held until that program ends")
	d.instances[0].UUID, d.instances[0].CI, d.instances[0].LeftOut = "MIG-late", 0, ""
	d.fails = nil
	n.has(d.machine())
	err := n.refuses(t, instanceClaim("p", oneSlice), "claim team/claim-q has it made, or destroyed, just now")
	if by := HeldBy(err); !slices.Equal(by, []types.UID{"q"}) {
		t.Errorf("held by %q, want claim q", by)
	}
	if err := n.Unprepare(t.Context(), "q"); err != nil || len(d.instances) > 0 {
		t.Errorf("%v; left: %+v", err, d.instances)
	}
	n.takes(t, instanceClaim("p", oneSlice)) // once it is destroyed
}

// Somebody has put into the place what has no UUID, but compute instances that are never made for a claim.
func TestInstanceOfOthersWithoutUUIDIsLeftAlone(t *testing.T) {
	n, d := cuttingNode(t)
	n.prepared(t, instanceClaim("a", oneSlice, elsewhere))
	d.instances[0].UUID, d.instances[0].CI, d.instances[0].LeftOut = "", gpu.NoCI, "it has 2 compute instances"
	d.instances[0].Recut = true
	// Nor is the record gone while the GPUs show the claim's own.
	rescan, rescans := n.options.Rescan, 0
	n.options.Rescan = func() { rescans++; rescan() }
	if err := n.Unprepare(t.Context(), "a"); err != nil || len(n.files(t)) > 0 || rescans == 0 {
		t.Errorf("%v; left: %v, the GPUs were read again %d times", err, n.files(t), rescans)
	}
	if len(d.instances) != 1 || d.instances[0].LeftOut != "it has 2 compute instances" {
		t.Errorf("left: %+v", d.instances)
	}
}

// Nobody has destroyed the claim's instance, but it cannot be told by its UUID when the claim ends: it goes all the
// same, or nobody would ever destroy it.
func TestInstanceThatLostItsUUIDIsDestroyed(t *testing.T) {
	for _, leftOut := range []string{"it has no compute instance", "its MIG device cannot be read: unknown error"} {
		n, d := cuttingNode(t)
		n.prepared(t, instanceClaim("a", oneSlice))
		d.instances[0].UUID, d.instances[0].CI, d.instances[0].LeftOut = "", gpu.NoCI, leftOut
		n.has(d.machine())
		expect.NoError(t, n.Unprepare(t.Context(), "a"))
		n.leaves(t, d)
	}
}

// The id of what a claim held before the node's last boot is free: no container of that time runs any more.
func TestInstanceWithTheIDOfOneThatWasHeldBeforeAReboot(t *testing.T) {
	n, d := newNode(t), &dynamicGPU{instances: []gpu.Instance{at(0, "MIG-static")}}
	d.instances[0].GI, d.instances[0].ProfileID, d.instances[0].Profile, d.instances[0].Size = 1, 5, "4g.40gb", 4
	n.cuts(d)
	n.prepared(t, instanceClaim("q", "gpu-4-mig-4g-40gb-0"))
	d.instances = nil
	n.reboot(t, "boot-2")
	n.cuts(d)
	n.takes(t, instanceClaim("p", "gpu-4-mig-3g-40gb-4"))
	if len(d.instances) != 1 || d.instances[0].GI != 1 {
		t.Errorf("instances: %+v", d.instances)
	}
	if r := n.recordOf(t, "q"); r.BootID != "boot-1" || r.Phase != state.Prepared {
		t.Errorf("the claim of before: %+v", r)
	}
}
