// SPDX-License-Identifier: Apache-2.0

package prepare

import (
	"errors"
	"testing"

	resourceapi "k8s.io/api/resource/v1"

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
	if err := n.Unprepare(t.Context(), "a"); err != nil || len(n.files(t)) > 0 {
		t.Errorf("unprepared: %v, left: %v", err, n.files(t))
	}
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
	expect.NoError(t, n.Unprepare(t.Context(), "a"))
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
		expect.NoError(t, n.Unprepare(t.Context(), c.UID))
	}
}
