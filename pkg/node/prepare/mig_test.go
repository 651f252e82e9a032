// SPDX-License-Identifier: Apache-2.0

package prepare

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/gpushare/dra-driver-gpushare/cdi"
	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/state"
)

// cut is machine with a GPU 4 in MIG mode that has these instances.
func cut(instances ...gpu.Instance) *gpu.Machine {
	m := machine()
	m.Partitioned = []gpu.Partitioned{{GPU: gpu.GPU{Index: 4, UUID: "GPU-4", MemoryMiB: 81920}, Instances: instances}}
	return m
}

// at is an instance of one slice.
func at(start int, uuid string) gpu.Instance {
	return gpu.Instance{InstanceID: gpu.InstanceID{GI: 7 + start}, UUID: uuid, ProfileID: 19,
		Profile: "1g.10gb", Start: start,
		Size: 1, MemoryMiB: 9728}
}

func instanceClaim(uid string, devices ...string) *resourceapi.ResourceClaim {
	return claimOf(uid, "gpu", devices...)
}

func (n *node) has(m *gpu.Machine) { n.SetInventory(&Inventory{Machine: m, Base: fakeBase{of: m}}) }

func (n *node) recordOf(t *testing.T, uid string) state.Record {
	t.Helper()
	for _, r := range n.records(t) {
		if string(r.UID) == uid {
			return r
		}
	}
	t.Fatalf("claim %s has no record", uid)
	return state.Record{}
}

func TestInstanceIsPreparedAndRecorded(t *testing.T) {
	n := newNode(t)
	n.has(cut(at(0, "MIG-a"), at(1, "MIG-b")))
	devices, err := n.Prepare(t.Context(), instanceClaim("a", "gpu-4-mig-1g-10gb-1"))
	if err != nil || len(devices) != 1 {
		t.Fatalf("%v, %v", devices, err)
	}
	g := n.recordOf(t, "a").Grants[0]
	if g.GPU.UUID != "MIG-b" || g.GPU.MIG == nil || g.GPU.MIG.ParentUUID != "GPU-4" || g.GPU.MIG.GI != 8 ||
		g.Isolation != "mig" {
		t.Errorf("recorded: %+v", g)
	}
	expect.Equal(t, "boot-1", n.recordOf(t, "a").BootID, "the boot is not recorded")
	n.givesBack(t, "a")
	n.leavesNothing(t)
}

// In one place, with one profile and one id, can be an instance that the claim was not given.
func TestAnotherInstanceInThePlaceIsRefused(t *testing.T) {
	n := newNode(t)
	n.has(cut(at(1, "MIG-b")))
	c := instanceClaim("a", "gpu-4-mig-1g-10gb-1")
	n.takes(t, c)
	for name, m := range map[string]*gpu.Machine{"created again": cut(at(1, "MIG-new")),
		"another place": cut(at(0, "MIG-b2")), "not cut": cut(), "MIG mode off": machine()} {
		t.Run(name, func(t *testing.T) {
			n.has(m)
			n.refuses(t, c, "GPU 4's 1g.10gb at slice 1 (MIG-b) is not there any more: somebody cut the GPU again",
				"delete the pod")
		})
	}
	// Another claim does not get the new one either: it has the device nodes of the old one.
	n.has(cut(at(1, "MIG-new")))
	n.refuses(t, instanceClaim("b", "gpu-4-mig-1g-10gb-1"),
		"holds the instance that was there before (MIG-b), whose device nodes are the same")
	// A GPU that cannot be read says nothing of its instances.
	n.has(&gpu.Machine{GPUs: machine().GPUs, Faults: []gpu.Fault{{Index: 4, Reason: gpu.FaultUnreadable}}})
	n.takes(t, c) // while the GPU cannot be read
	n.givesBack(t, "a")
	n.has(cut(at(1, "MIG-new")))
	n.takes(t, instanceClaim("b", "gpu-4-mig-1g-10gb-1"))
}

func TestMissingCapabilityIsRefused(t *testing.T) {
	n := newNode(t)
	n.SetInventory(&Inventory{Machine: cut(at(0, "MIG-a")), Base: fakeBase{missing: map[string]error{
		"MIG-a": errors.New("the capability of GPU instance 7 is not there")}}})
	n.refuses(t, instanceClaim("a", "gpu-4-mig-1g-10gb-0"),
		"GPU 4's 1g.10gb at slice 0: the capability of GPU instance 7 is not there")
}

// No container of before outlives a reboot, and no instance does.
func TestAfterARebootTheInstanceInThePlaceIsGiven(t *testing.T) {
	n := newNode(t)
	n.has(cut(at(1, "MIG-b")))
	c := instanceClaim("a", "gpu-4-mig-1g-10gb-1")
	n.takes(t, c)
	n.restart(t)
	n.options.BootID = "boot-2"
	n.has(cut())
	n.refuses(t, c, "GPU 4 has no such MIG instance any more")
	n.has(cut(at(1, "MIG-new")))
	n.takes(t, c)
	if r := n.recordOf(t, "a"); r.Grants[0].GPU.UUID != "MIG-new" || r.BootID != "boot-2" {
		t.Errorf("recorded: %+v", r)
	}
}

func TestSeveralInstancesOfAContainerAreTold(t *testing.T) {
	n := newNode(t)
	n.has(cut(at(0, "MIG-a"), at(1, "MIG-b")))
	for want, c := range map[int]*resourceapi.ResourceClaim{
		1: instanceClaim("two", "gpu-4-mig-1g-10gb-0", "gpu-4-mig-1g-10gb-1"),
		0: instanceClaim("one", "gpu-4-mig-1g-10gb-0")} {
		result, err := n.Preparer.Prepare(t.Context(), c)
		if err != nil || len(result.Instances) != want {
			t.Errorf("%s: %v, %v", c.Name, result.Instances, err)
		}
		n.givesBack(t, c.UID)
	}
}

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
			expect.Equal(t, []types.UID{"q"}, HeldBy(err), "held by")
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
	expect.Equal(t, []types.UID{"q"}, HeldBy(err), "held by")
	expect.Equal(t, ReasonInUse, ReasonOf(err), "the reason")
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
	expect.Equal(t, []types.UID{"q"}, HeldBy(err), "held by")
	n.givesBack(t, "q")
	n.leaves(t, d)
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
	n.givesBack(t, "a")
	n.leavesNothing(t)
	if rescans == 0 {
		t.Error("the GPUs were not read again")
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
		n.givesBack(t, "a")
		n.leaves(t, d)
	}
}

// The id of what a claim held before the node's last boot is free: no container of that time runs any more.
func TestInstanceWithTheIDOfOneThatWasHeldBeforeAReboot(t *testing.T) {
	static := at(0, "MIG-static")
	static.GI, static.ProfileID, static.Profile, static.Size = 1, 5, "4g.40gb", 4
	n, d := cuttingNode(t, static)
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

// Where the records are lost, the CDI spec of a claim that ends tells which instances were made for it: they go as soon
// as no program has them.
func TestLostRecordsOfInstancesWhoseClaimEnds(t *testing.T) {
	for name, end := range map[string]func(n *node) error{
		"unprepared": func(n *node) error { return n.Unprepare(t.Context(), "made") },
		"gone": func(n *node) error {
			n.api.Claims = nil
			return n.repairer().Repair(t.Context())
		},
		"allocated again": func(n *node) error {
			n.api.Claims = []*resourceapi.ResourceClaim{instanceClaim("made", fourOf)}
			return n.repairer().Repair(t.Context())
		},
	} {
		t.Run(name, func(t *testing.T) {
			n, d := cuttingNode(t, at(5, "MIG-foreign"))
			n.prepared(t, instanceClaim("made", oneSlice, elsewhere))
			n.loseState(t)
			n.cuts(d)
			// A GPU that cannot be read says nothing of its instances.
			n.has(&gpu.Machine{GPUs: machine().GPUs, Faults: []gpu.Fault{{Index: 4, Reason: gpu.FaultUnreadable}}})
			expect.Error(t, end(n), "cannot be read")
			if len(n.specs(t)) == 0 {
				t.Error("nothing tells of the instance any more")
			}
			n.has(d.machine())
			d.fails = map[string]error{"destroy": fmt.Errorf("destroying: %w", gpu.ErrInstanceInUse)}
			expect.Error(t, end(n), "it stays held until that program ends")
			d.fails = nil
			expect.NoError(t, end(n))
			n.leaves(t, d, "MIG-foreign")
		})
	}
}

// Another process may make an instance after the GPUs were read: they are read again, and then the claim is recovered.
// An instance that is gone is told by who publishes the devices.
func TestInstanceThatWasMadeSinceTheGPUsWereRead(t *testing.T) {
	n, d := cuttingNode(t)
	before := d.machine()
	n.prepared(t, instanceClaim("made", oneSlice))
	specs := n.specs(t)
	n.restart(t)
	n.has(before)
	rescans := 0
	n.options.Rescan = func() { rescans++ }
	if err := n.Recover(t.Context()); err != nil || rescans != 1 {
		t.Errorf("%v; the GPUs are read again %d times, want once", err, rescans)
	}
	expect.NoError(t, n.options.Specs.Remove(cdi.SpecName("made")))
	expect.Error(t, n.repairer().Repair(t.Context()), "the GPUs do not show the MIG instance that was made for it")
	n.cuts(d)
	expect.NoError(t, n.Recover(t.Context()))
	expect.Equal(t, specs, n.specs(t), "CDI specs")
}

// Where the records are lost, it is still known which instances were made for claims, and they go with them.
func TestLostRecordsOfInstances(t *testing.T) {
	n, d := cuttingNode(t, at(5, "MIG-foreign"))
	made, found := instanceClaim("made", oneSlice, elsewhere), instanceClaim("found", "gpu-4-mig-1g-10gb-5")
	want := n.prepared(t, made, found)
	n.loseState(t)
	n.cuts(d)
	expect.NoError(t, n.repairer().Repair(t.Context()))
	expect.Equal(t, want, n.records(t), "records")
	n.givesBack(t, "made", "found")
	n.leaves(t, d, "MIG-foreign")
	// An instance that is gone is made again when the kubelet asks for the claim.
	n.cuts(d)
	again := instanceClaim("again", oneSlice)
	n.prepared(t, again)
	d.instances = d.instances[:1]
	n.loseState(t)
	n.cuts(d)
	expect.NoError(t, n.repairer().Repair(t.Context()))
	n.takes(t, again)
	expect.Equal(t, 2, len(d.instances), "instances %+v", d.instances)
}
