// SPDX-License-Identifier: Apache-2.0

package prepare

import (
	"errors"
	"testing"

	"k8s.io/apimachinery/pkg/types"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/state"
)

// reboot is a start of the plugin in another boot of the node.
func (n *node) reboot(t *testing.T, boot string) {
	t.Helper()
	n.restart(t)
	n.options.BootID = boot
	expect.NoError(t, n.Recover(t.Context()))
}

// countingStore counts the writes of records.
type countingStore struct {
	Store
	puts int
}

func (s *countingStore) Put(r state.Record) error {
	s.puts++
	return s.Store.Put(r)
}

// A pod that comes back after a reboot uses its claim again: what it has stays its own until its processes have ended,
// though it was deleted by force. The record says so before the pod's containers start.
func TestClaimOfAPodThatCameBackAfterAReboot(t *testing.T) {
	n := newNode(t)
	c := reservedFor(wholeGPUs("u0", 0), "p0")
	n.takes(t, c)
	n.reboot(t, "boot-2")
	n.running = map[types.UID]bool{"p0": true}
	if user, err := n.InUse(n.recordOf(t, "u0")); user != "" || err != nil {
		t.Errorf("before it came back, in use by %q, %v", user, err)
	}
	writes := &countingStore{Store: n.options.Store}
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
	expect.NoError(t, n.Unprepare(t.Context(), "u0"))
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
	if err := n.Unprepare(t.Context(), "a"); err != nil || len(d.instances) != 1 || len(n.files(t)) > 0 {
		t.Errorf("%v; left: %+v %v", err, d.instances, n.files(t))
	}
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
	if g := n.recordOf(t, "a").Grants[0].GPU; g.UUID != "MIG-new" {
		t.Errorf("recorded: %+v", g)
	}
}
