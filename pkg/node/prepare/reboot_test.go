// SPDX-License-Identifier: Apache-2.0

package prepare

import (
	"errors"
	"slices"
	"strings"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
)

// reboot is a start of the plugin in another boot of the node.
func (n *node) reboot(t *testing.T, boot string) {
	t.Helper()
	n.restart(t)
	n.options.BootID = boot
	expect.NoError(t, n.Recover(t.Context()))
}

// A pod that comes back after a reboot uses its claim again: what it has stays its own until its processes have ended,
// though it was deleted by force. The record says so before the pod's containers start.
func TestClaimOfAPodThatCameBackAfterAReboot(t *testing.T) {
	n := newNode(t)
	c := reservedFor(wholeGPUs("u0", 0), "p0")
	n.takes(t, c)
	n.reboot(t, "boot-2")
	n.running = map[types.UID]bool{"p0": true}
	n.isUsedBy(t, "u0", "") // before it came back
	writes := &fullDisk{Store: n.options.Store, room: 9}
	n.options.Store = writes
	for _, step := range []struct {
		who  string
		pods []types.UID
		puts int
	}{
		{"the pod that came back, and another", []types.UID{"p1"}, 1},
		{"the kubelet again", nil, 1},
		{"a third pod", []types.UID{"p2"}, 2},
	} {
		n.takes(t, reservedFor(c, step.pods...))
		expect.Equal(t, step.puts, writes.puts, "%s: writes of the record so far", step.who)
	}
	expect.Error(t, n.Unprepare(t.Context(), "u0"), "processes still run of the pod")
	n.refuses(t, reservedFor(wholeGPUs("u1", 0), "p3"), "promised twice")
	n.running = nil
	n.givesBack(t, "u0")
}

// What was made for a claim is gone after a reboot. What has its UUID then somebody else has made, and keeps.
func TestInstanceThatSomebodyMadeAnewAfterAReboot(t *testing.T) {
	n, d := cuttingNode(t)
	c := instanceClaim("a", oneSlice)
	n.takes(t, c)
	n.reboot(t, "boot-2")
	n.cuts(d)
	n.takes(t, c)
	if r := n.recordOf(t, "a"); r.BootID != "boot-2" || r.Grants[0].GPU.MIG.Made || d.made != 1 {
		t.Errorf("recorded: %+v, %d made", r, d.made)
	}
	n.givesBack(t, "a")
	n.leaves(t, d, "MIG-made-1")
}

// A GPU that cannot be read after a reboot says nothing of its instances: when it can, the claim gets what is in the
// place then.
func TestInstanceOfAGPUThatIsReadLateAfterAReboot(t *testing.T) {
	n := newNode(t)
	n.has(cut(at(1, "MIG-b")))
	c := instanceClaim("a", "gpu-4-mig-1g-10gb-1")
	n.takes(t, c)
	n.reboot(t, "boot-2")
	n.SetInventory(&Inventory{
		Machine: &gpu.Machine{GPUs: machine().GPUs, Faults: []gpu.Fault{{Index: 4, Reason: gpu.FaultUnreadable}}},
		Base:    fakeBase{missing: map[string]error{"MIG-b": errors.New("GPU MIG-b is unknown")}},
	})
	n.refuses(t, c, "GPU MIG-b is unknown")
	n.has(cut(at(1, "MIG-new")))
	n.takes(t, c)
	expect.Equal(t, "MIG-new", n.recordOf(t, "a").Grants[0].GPU.UUID, "recorded")
}

// A machine in a cloud that was stopped can start on another host: its GPUs have other UUIDs
// (AliyunContainerService/gpushare-scheduler-extender issue 85). Pods that come back get those in the places of theirs.
// Behind a GPU that died at the boot all others have other places: there a claim does not get what another one holds.
func TestGPUsThatWereReplacedAtAReboot(t *testing.T) {
	const gone = "is not there any more: delete the pod, so that it is placed again"
	with := func(model string, uuids ...string) *gpu.Machine {
		m := &gpu.Machine{}
		for i, uuid := range uuids {
			m.GPUs = append(m.GPUs, gpu.GPU{Index: i, UUID: uuid, Model: model, MemoryMiB: 16130})
		}
		return m
	}
	faulty := with("", "new-0", "new-1", "GPU-2")
	faulty.Faults = []gpu.Fault{{Index: 3}}
	for name, tc := range map[string]struct {
		boot    string
		machine *gpu.Machine
		// uses are the pods with processes.
		uses []types.UID
		// a, b and c are what the claims get that have shares of GPU 0 and 0, and GPU 1: a UUID, or what the error says.
		a, b, c string
	}{
		"another host":            {"boot-2", with("", "new-0", "new-1", "new-2"), nil, "new-0", "new-0", "new-1"},
		"one GPU exchanged":       {"boot-2", with("", "new-0", "GPU-1"), nil, "new-0", "new-0", "GPU-1"},
		"in the same boot":        {"boot-1", with("", "new-0", "GPU-1"), nil, "new-0", "new-0", "GPU-1"},
		"while a pod runs":        {"boot-1", with("", "new-0", "GPU-1"), []types.UID{"p-b"}, "new-0", gone, "GPU-1"},
		"another model":           {"boot-2", with("A10", "new-0", "new-1"), nil, gone, gone, gone},
		"the first GPU died":      {"boot-2", with("", "GPU-1", "GPU-2", "GPU-3"), nil, gone, gone, "GPU-1"},
		"the second GPU died":     {"boot-2", with("", "GPU-0", "GPU-2", "GPU-3"), nil, "GPU-0", "GPU-0", "GPU-2"},
		"none in the place":       {"boot-2", with("", "new-0"), nil, "new-0", "new-0", gone},
		"one that cannot be read": {"boot-2", faulty, nil, "GPU-0 is unknown", "GPU-0 is unknown", "GPU-1 is unknown"},
		"none":                    {"boot-2", machine(), nil, "GPU-0", "GPU-0", "GPU-1"},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t)
			claims := []*resourceapi.ResourceClaim{reservedFor(sharesOf("a", 0, 8), "p-a"),
				reservedFor(sharesOf("b", 0, 7), "p-b"), reservedFor(sharesOf("c", 1, 15), "p-c")}
			n.takes(t, claims...)
			n.restart(t)
			n.options.BootID = tc.boot
			n.running = map[types.UID]bool{}
			for _, pod := range tc.uses {
				n.running[pod] = true
			}
			missing := map[string]error{"GPU-0": errors.New("GPU-0 is unknown"), "GPU-1": errors.New("GPU-1 is unknown")}
			for _, g := range tc.machine.GPUs {
				delete(missing, g.UUID)
			}
			n.SetInventory(&Inventory{Machine: tc.machine, Base: fakeBase{missing: missing, of: tc.machine}})
			wants := []string{tc.a, tc.b, tc.c}
			fails := slices.ContainsFunc(wants, func(want string) bool { return strings.Contains(want, " ") })
			if err := n.Recover(t.Context()); (err != nil) != fails {
				t.Errorf("recovered: %v", err)
			}
			for i, want := range wants {
				if strings.Contains(want, " ") {
					n.refuses(t, claims[i], want)
					continue
				}
				devices := n.takes(t, claims[i])
				expect.Equal(t, "/dev/"+want, n.edits(t, devices[0].CDIDeviceIDs[0]).DeviceNodes[0].Path, "%s gets", claims[i].UID)
				expect.Equal(t, want, n.recordOf(t, string(claims[i].UID)).Grants[0].GPU.UUID, "%s is recorded with", claims[i].UID)
			}
		})
	}
}
