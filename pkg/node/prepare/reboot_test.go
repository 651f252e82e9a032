// SPDX-License-Identifier: Apache-2.0

package prepare

import (
	"errors"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2/ktesting"

	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/state"
)

// reboot is a start of the plugin in another boot of the node.
func (n *node) reboot(t *testing.T, boot string) {
	t.Helper()
	n.restart(t)
	n.options.BootID = boot
	if err := n.Recover(t.Context()); err != nil {
		t.Fatal(err)
	}
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
	_, ctx := ktesting.NewTestContext(t)
	n := newNode(t)
	c := reservedFor(wholeGPUs("u0", 0), "p0")
	if _, err := n.Prepare(ctx, c); err != nil {
		t.Fatal(err)
	}
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
		if _, err := n.Prepare(ctx, reservedFor(c, step.pods...)); err != nil {
			t.Fatal(err)
		}
		if writes.puts != step.puts {
			t.Errorf("%s: %d writes of the record so far, want %d", step.who, writes.puts, step.puts)
		}
	}
	if err := n.Unprepare(ctx, "u0"); err == nil || !strings.Contains(err.Error(), "processes still run of the pod") {
		t.Errorf("unprepared while a process runs: %v", err)
	}
	if _, err := n.Prepare(ctx, reservedFor(wholeGPUs("u1", 0), "p3")); err == nil ||
		!strings.Contains(err.Error(), "promised twice") {
		t.Errorf("another's claim for the GPU: %v", err)
	}
	n.running = nil
	if err := n.Unprepare(ctx, "u0"); err != nil {
		t.Error(err)
	}
}

// What was made for a claim is gone after a reboot. What has its UUID then somebody else has made, and keeps.
func TestInstanceThatSomebodyMadeAnewAfterAReboot(t *testing.T) {
	n, d := newNode(t), &dynamicGPU{}
	n.cuts(d)
	c := instanceClaim("a", oneSlice)
	if _, err := n.Prepare(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	n.reboot(t, "boot-2")
	n.cuts(d)
	if _, err := n.Prepare(t.Context(), c); err != nil {
		t.Fatal(err)
	}
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
	if _, err := n.Prepare(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	n.reboot(t, "boot-2")
	n.SetInventory(&Inventory{
		Machine: &gpu.Machine{GPUs: machine().GPUs, Faults: []gpu.Fault{{Index: 4, Reason: gpu.FaultUnreadable}}},
		Base:    fakeBase{missing: map[string]error{"MIG-b": errors.New("GPU MIG-b is unknown")}},
	})
	_, err := n.Prepare(t.Context(), c)
	fails(t, err, "GPU MIG-b is unknown")
	n.has(cut(at(1, "MIG-new")))
	if _, err := n.Prepare(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	if g := n.recordOf(t, "a").Grants[0].GPU; g.UUID != "MIG-new" {
		t.Errorf("recorded: %+v", g)
	}
}
