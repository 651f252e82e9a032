// SPDX-License-Identifier: Apache-2.0

package supervisor

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/mps"
)

// together is a world of GPUs that one daemon is to serve.
func together(t *testing.T, uuids ...string) *world {
	t.Helper()
	w := newWorld(t, uuids...)
	for _, uuid := range uuids {
		w.device(uuid).settable = true
	}
	w.wantNodeDaemon(true)
	w.usesOfNode(mps.Use{Reserved: true}, uuids...)
	return w
}

func (w *world) wantNodeDaemon(want bool) {
	w.t.Helper()
	expect.NoError(w.t, w.dir.WantNodeDaemon(want))
}

func (w *world) usesOfNode(u mps.Use, uuids ...string) {
	w.t.Helper()
	for _, uuid := range uuids {
		expect.NoError(w.t, w.dir.OfNode().SetUse(uuid, u))
	}
}

// ofNode passes the time until the daemon for all GPUs is in this state, for each of them.
func (w *world) ofNode(state mps.State, reason string, uuids ...string) {
	w.t.Helper()
	for _, uuid := range uuids {
		w.pass(func() bool {
			s, err := w.dir.OfNode().Status(uuid)
			return err == nil && s.State == state && strings.Contains(s.Reason, reason)
		}, "the daemon of all cards is "+string(state)+" for "+uuid+": "+reason)
	}
}

func (w *world) awaitModes(mode gpu.ComputeMode, uuids ...string) {
	w.t.Helper()
	for _, uuid := range uuids {
		w.awaitMode(w.device(uuid), mode)
	}
}

// A GPU whose compute mode cannot be set, beside others, is left in that which it has.
func TestOneDaemonServesAGPUWhoseModeCannotBeSet(t *testing.T) {
	w := together(t, "a", "b")
	w.device("b").settable = false
	w.run()
	w.ofNode(mps.Ready, "", "a", "b")
	w.awaitModes(gpu.ComputeExclusiveProcess, "a")
	w.awaitModes(gpu.ComputeDefault, "b")
	for uuid, want := range map[string]bool{"a": true, "b": false} {
		if s, err := w.dir.OfNode().Status(uuid); err != nil || s.DriverEnforced != want {
			t.Errorf("GPU %s: %+v, %v", uuid, s, err)
		}
	}
}

func TestOneDaemonServesAllGPUs(t *testing.T) {
	w := serving(t, mps.Use{Reserved: true})
	w.awaitModes(gpu.ComputeExclusiveProcess, "a", "b")
	if starts := w.node.started("a,b"); len(starts) != 1 || starts[0].server == 0 {
		t.Fatalf("starts %+v", starts)
	}
	for _, uuid := range []string{"a", "b"} {
		expect.NoErrorf(t, w.dir.OfNode().Check(uuid), "GPU %s", uuid)
		if s, err := w.dir.OfNode().Status(uuid); err != nil || !s.DriverEnforced {
			t.Errorf("GPU %s: %+v, %v", uuid, s, err)
		}
	}
	expect.Equal(t, w.dir.OfNode().PipeDir("a"), w.dir.OfNode().PipeDir("b"), "where clients find the daemon")
	// Those of single GPUs have none to serve.
	for _, uuid := range []string{"a", "b"} {
		w.awaitState(uuid, mps.Ready)
		expect.Equal(t, 0, w.control.server(uuid), "the daemon of GPU %s has server", uuid)
	}

	// Each GPU has its limit of memory; the percentage is that of a process everywhere.
	admitted := make(chan error, 1)
	go func() {
		admitted <- errors.Join(
			w.dir.OfNode().Admit(t.Context(), "a", mps.Limits{MemoryMiB: 1024, ThreadPercent: 50}),
			w.dir.OfNode().Admit(t.Context(), "b", mps.Limits{MemoryMiB: 2048, ThreadPercent: 25}))
	}()
	w.pass(func() bool { return len(admitted) > 0 }, "the claims are admitted")
	expect.NoError(t, <-admitted)
	w.pass(func() bool {
		return w.node.asked(strings.Join([]string{"set_default_device_pinned_mem_limit 0 1024M",
			"set_default_device_pinned_mem_limit 1 2048M", "set_default_active_thread_percentage 50",
			"set_device_pinned_mem_limit 101 0 1024M", "set_device_pinned_mem_limit 101 1 2048M",
			"set_active_thread_percentage 101 50"}, "\n"))
	}, "the limits of both cards are in force")
	for uuid, want := range map[string]mps.Limits{"a": {MemoryMiB: 1024, ThreadPercent: 50},
		"b": {MemoryMiB: 2048, ThreadPercent: 50}} {
		w.pass(func() bool { s, err := w.dir.OfNode().Status(uuid); return err == nil && s.InForce == want },
			"it is told that they are for "+uuid)
	}
}

// The end of the one daemon is told of all GPUs, and none can be used beside it.
func TestEndOfTheDaemonOfAllGPUs(t *testing.T) {
	w := serving(t, mps.Use{Reserved: true})
	w.node.started("a,b")[0].end("crashed", false)
	w.eventually(func() bool {
		return w.device("a").is() == gpu.ComputeProhibited && w.device("b").is() == gpu.ComputeProhibited
	}, "both cards are closed")
	for _, uuid := range []string{"a", "b"} {
		w.eventually(func() bool { return w.dir.OfNode().Check(uuid) != nil }, "it is told of "+uuid)
	}
	w.ofNode(mps.Ready, "", "a", "b")
	w.awaitModes(gpu.ComputeExclusiveProcess, "a", "b")
	expect.Equal(t, 2, len(w.node.started("a,b")), "starts")
}

// A GPU that hangs keeps no other one open.
func TestGPUsAreClosedAtTheSameTime(t *testing.T) {
	w := serving(t, mps.Use{Reserved: true})
	answers := make(chan struct{})
	defer close(answers)
	w.device("a").set(func(d *fakeDevice) { d.onSet = func(*fakeDevice, gpu.ComputeMode) { <-answers } })
	w.node.endServer("a,b")
	w.eventually(func() bool { return w.device("b").is() == gpu.ComputeProhibited }, "the other card is closed")
}

// No plugin withdraws its wish while claims use the daemon. What runs goes on.
func TestWishForTheDaemonOfAllGPUsThatIsLost(t *testing.T) {
	for name, lost := range map[string]string{"its file": "wanted", "all files": "*"} {
		t.Run(name, func(t *testing.T) {
			w := serving(t, claimed)
			set := len(w.device("a").was()) + len(w.device("b").was())
			// The supervisor may write there at the same moment.
			w.eventually(func() bool {
				paths, err := filepath.Glob(filepath.Join(string(w.dir.OfNode()), lost))
				for _, path := range paths {
					err = errors.Join(err, os.RemoveAll(path))
				}
				return err == nil
			}, "it is removed")
			w.manyLooks()
			expect.Equal(t, set, len(w.device("a").was())+len(w.device("b").was()),
				"compute modes were set: %s, %s", w.device("a").was(), w.device("b").was())
			daemon := w.node.started("a,b")[0]
			select {
			case <-daemon.Done():
				t.Errorf("the daemon has ended: %v", daemon.Err())
			default:
			}
			// Once it is empty, nothing is lost any more.
			w.usesOfNode(mps.Use{}, "a", "b")
			w.ofNode(mps.Down, nodeIdle, "a", "b")
			w.awaitModes(gpu.ComputeDefault, "a", "b")
		})
	}
}

// With what the GPUs are used for lost, no daemon starts that would serve them, and they stay closed.
func TestUsesThatAreLostWithTheDaemon(t *testing.T) {
	w := serving(t, mps.Use{Reserved: true})
	for _, uuid := range []string{"a", "b"} {
		expect.NoError(t, os.Remove(filepath.Join(w.dir.OfNode().Files(uuid), mps.UseFile)))
	}
	w.ofNode(mps.Down, errUseGone.Error(), "a", "b")
	w.node.started("a,b")[0].end("crashed", false)
	w.ofNode(mps.Down, "crashed", "a", "b")
	w.manyLooks()
	w.ofNode(mps.Down, errUseGone.Error(), "a", "b")
	w.usesOfNode(mps.Use{Reserved: true}, "a", "b")
	w.ofNode(mps.Ready, "", "a", "b")
	for _, uuid := range []string{"a", "b"} {
		w.neverOpen(uuid)
	}
}

// manyLooks passes time in which all look several times at what there is.
func (w *world) manyLooks() {
	w.t.Helper()
	before := len(w.clock.of(lookInterval))
	w.pass(func() bool { return len(w.clock.of(lookInterval)) > before+40 }, "it is looked")
}

func TestForeignProcessesOnOneOfAllGPUs(t *testing.T) {
	w := together(t, "a", "b")
	w.device("b").pids = []int{4711}
	w.run()
	w.ofNode(mps.Down, "GPU b: processes use the GPU beside MPS: process 4711", "a", "b")
	w.device("b").set(func(d *fakeDevice) { d.pids = nil })
	w.ofNode(mps.Ready, "", "a", "b")
}

// Neither kind of daemon takes a GPU for free that the other one has, nor what it has set
// for what was found.
func TestOneDaemonTakesTurnsWithThoseOfGPUs(t *testing.T) {
	w := together(t, "a", "b")
	w.wantNodeDaemon(false)
	w.usesOfNode(mps.Use{}, "a", "b")
	all := func(u mps.Use) {
		t.Helper()
		expect.NoError(t, errors.Join(w.dir.SetUse("a", u), w.dir.SetUse("b", u)))
	}
	all(claimed)
	w.run()
	w.awaitModes(gpu.ComputeExclusiveProcess, "a", "b")
	expect.Equal(t, 0, len(w.node.started("a,b")), "daemons for all cards, which nobody wants")

	w.wantNodeDaemon(true)
	w.ofNode(mps.Ready, "", "a", "b")
	w.usesOfNode(mps.Use{Reserved: true}, "a", "b")
	w.ofNode(mps.Down, "another MPS control daemon has the GPU", "a", "b")
	if server := w.control.server("a"); server == 0 {
		t.Error("the clients of the GPU's own daemon have lost its server")
	}
	all(mps.Use{})
	w.ofNode(mps.Ready, "", "a", "b")
	w.awaitModes(gpu.ComputeExclusiveProcess, "a", "b")
	if w.control.server("a") != 0 || w.node.server("a,b") == 0 {
		t.Errorf("servers %d and %d", w.control.server("a"), w.node.server("a,b"))
	}

	w.usesOfNode(mps.Use{}, "a", "b")
	w.wantNodeDaemon(false)
	w.ofNode(mps.Down, "", "a", "b")
	w.awaitModes(gpu.ComputeDefault, "a", "b")
	all(claimed)
	w.awaitModes(gpu.ComputeExclusiveProcess, "a", "b")
	w.end()
	for _, uuid := range []string{"a", "b"} {
		if found, known, err := w.dir.FoundMode(uuid); err != nil || !known || found != gpu.ComputeDefault {
			t.Errorf("GPU %s: found %s, known %t, %v", uuid, found, known, err)
		}
	}
}

// What a supervisor that was killed has left of the one daemon is put back.
func TestLeftOfTheDaemonOfAllGPUs(t *testing.T) {
	for name, idle := range map[string]bool{"daemons run": false, "none run": true} {
		t.Run(name, func(t *testing.T) {
			w := together(t, "a", "b")
			w.wantNodeDaemon(false)
			w.usesOfNode(mps.Use{}, "a", "b")
			for _, uuid := range []string{"a", "b"} {
				w.device(uuid).mode = gpu.ComputeProhibited
				expect.NoError(t, w.dir.OfNode().KeepFoundMode(uuid, gpu.ComputeDefault))
			}
			if idle {
				w.plugin(mps.Idle)
			}
			w.run()
			w.awaitModes(gpu.ComputeDefault, "a", "b")
		})
	}
}

// A GPU that is found later is served as soon as no claim would end with the daemon.
func TestOneDaemonAndGPUsThatAppearLater(t *testing.T) {
	w := together(t, "a", "b")
	w.has("a")
	w.set(func() { w.machine.Faults = []gpu.Fault{{Index: 1, UUID: "b"}} })
	w.usesOfNode(claimed, "a")
	w.run()
	w.ofNode(mps.Ready, "", "a")
	w.set(func() { w.machine = gpu.Machine{GPUs: []gpu.GPU{{Index: 0, UUID: "a"}, {Index: 1, UUID: "b"}}} })
	w.pass(func() bool { return w.status("b").State == mps.Ready }, "the card has a daemon of its own")
	if err := w.dir.OfNode().Check("b"); err == nil || slices.ContainsFunc(w.node.started("a"),
		func(d *fakeDaemon) bool { return d.killed || d.err != nil }) {
		t.Errorf("the daemon of GPU a has ended, or serves GPU b: %v", err)
	}
	w.usesOfNode(mps.Use{Reserved: true}, "a")
	w.ofNode(mps.Ready, "", "a", "b")
	expect.Equal(t, 1, len(w.node.started("a,b")), "starts")
}
