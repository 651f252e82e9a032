// SPDX-License-Identifier: Apache-2.0

package prepare

import (
	"errors"
	"strings"
	"testing"

	resourceapi "k8s.io/api/resource/v1"

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
	c := emptyClaim(uid)
	for _, device := range devices {
		c.Status.Allocation.Devices.Results = append(c.Status.Allocation.Devices.Results,
			resourceapi.DeviceRequestAllocationResult{Request: "gpu", Driver: "gpu.aliyun.com", Pool: pool, Device: device})
	}
	return c
}

func (n *node) has(m *gpu.Machine) { n.SetInventory(&Inventory{Machine: m, Base: fakeBase{of: m}}) }

func (n *node) recordOf(t *testing.T, uid string) state.Record {
	t.Helper()
	records, err := n.Prepared(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range records {
		if string(r.UID) == uid {
			return r
		}
	}
	t.Fatalf("claim %s has no record", uid)
	return state.Record{}
}

func fails(t *testing.T, err error, want string) {
	t.Helper()
	if err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("error %v, want one that contains %q", err, want)
	}
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
	if n.recordOf(t, "a").BootID != "boot-1" {
		t.Error("the boot is not recorded")
	}
	if err := n.Unprepare(t.Context(), "a"); err != nil || len(n.files(t)) > 0 {
		t.Errorf("unprepared: %v, left: %v", err, n.files(t))
	}
}

// In one place, with one profile and one id, can be an instance that the claim was not given.
func TestAnotherInstanceInThePlaceIsRefused(t *testing.T) {
	n := newNode(t)
	n.has(cut(at(1, "MIG-b")))
	c := instanceClaim("a", "gpu-4-mig-1g-10gb-1")
	if _, err := n.Prepare(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	for name, m := range map[string]*gpu.Machine{"created again": cut(at(1, "MIG-new")),
		"another place": cut(at(0, "MIG-b2")), "not cut": cut(), "MIG mode off": machine()} {
		n.has(m)
		_, err := n.Prepare(t.Context(), c)
		fails(t, err, "GPU 4's 1g.10gb at slice 1 (MIG-b) is not there any more: somebody cut the GPU again")
		if err != nil && !strings.Contains(err.Error(), "delete the pod") {
			t.Errorf("%s: the owner is not told what to do: %v", name, err)
		}
	}
	// Another claim does not get the new one either: it has the device nodes of the old one.
	n.has(cut(at(1, "MIG-new")))
	_, err := n.Prepare(t.Context(), instanceClaim("b", "gpu-4-mig-1g-10gb-1"))
	fails(t, err, "holds the instance that was there before (MIG-b), whose device nodes are the same")
	// A GPU that cannot be read says nothing of its instances.
	n.has(&gpu.Machine{GPUs: machine().GPUs, Faults: []gpu.Fault{{Index: 4, Reason: gpu.FaultUnreadable}}})
	if _, err := n.Prepare(t.Context(), c); err != nil {
		t.Errorf("while the GPU cannot be read: %v", err)
	}
	if err := n.Unprepare(t.Context(), "a"); err != nil {
		t.Fatal(err)
	}
	n.has(cut(at(1, "MIG-new")))
	if _, err := n.Prepare(t.Context(), instanceClaim("b", "gpu-4-mig-1g-10gb-1")); err != nil {
		t.Errorf("once the claim ended: %v", err)
	}
}

func TestGoneInstanceIsRefusedInWords(t *testing.T) {
	n := newNode(t)
	n.has(cut(at(0, "MIG-a")))
	_, err := n.Prepare(t.Context(), instanceClaim("a", "gpu-4-mig-3g-40gb-4"))
	fails(t, err, "GPU 4 has no such MIG instance any more")
	if files := n.files(t); len(files) > 0 {
		t.Errorf("left: %v", files)
	}
}

func TestMissingCapabilityIsRefused(t *testing.T) {
	n := newNode(t)
	n.SetInventory(&Inventory{Machine: cut(at(0, "MIG-a")), Base: fakeBase{missing: map[string]error{
		"MIG-a": errors.New("the capability of GPU instance 7 is not there")}}})
	_, err := n.Prepare(t.Context(), instanceClaim("a", "gpu-4-mig-1g-10gb-0"))
	fails(t, err, "GPU 4's 1g.10gb at slice 0: the capability of GPU instance 7 is not there")
}

// No container of before outlives a reboot, and no instance does.
func TestAfterARebootTheInstanceInThePlaceIsGiven(t *testing.T) {
	n := newNode(t)
	n.has(cut(at(1, "MIG-b")))
	c := instanceClaim("a", "gpu-4-mig-1g-10gb-1")
	if _, err := n.Prepare(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	n.restart(t)
	n.options.BootID = "boot-2"
	n.has(cut())
	_, err := n.Prepare(t.Context(), c)
	fails(t, err, "GPU 4 has no such MIG instance any more")
	n.has(cut(at(1, "MIG-new")))
	if _, err := n.Prepare(t.Context(), c); err != nil {
		t.Fatal(err)
	}
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
		if err := n.Unprepare(t.Context(), c.UID); err != nil {
			t.Fatal(err)
		}
	}
}
