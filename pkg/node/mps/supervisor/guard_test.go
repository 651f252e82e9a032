// SPDX-License-Identifier: Apache-2.0

package supervisor

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/mps"
)

// guarded is a world whose GPU is for MPS alone, found in this compute mode.
func guarded(t *testing.T, found gpu.ComputeMode) (*world, *fakeDevice) {
	t.Helper()
	w := newWorld(t, "a")
	d := w.device("a")
	d.settable, d.mode = true, found
	w.uses(mps.Use{Reserved: true})
	return w, d
}

// claimed is how a GPU is used that has a claim.
var claimed = mps.Use{Reserved: true}.With(mps.Limits{MemoryMiB: 1024, ThreadPercent: 100})

func (w *world) uses(u mps.Use) {
	w.t.Helper()
	expect.NoError(w.t, w.dir.SetUse("a", u))
}

func (w *world) awaitMode(d *fakeDevice, mode gpu.ComputeMode) {
	w.t.Helper()
	w.pass(func() bool { return d.is() == mode }, "the compute mode is "+mode.String())
}

// servesAlone checks that the GPU has a server, and takes no program beside it.
func (w *world) servesAlone(d *fakeDevice) {
	w.t.Helper()
	if d.is() != gpu.ComputeExclusiveProcess || w.control.server("a") == 0 {
		w.t.Errorf("compute mode %s, server %d", d.is(), w.control.server("a"))
	}
}

// foundBefore checks which compute mode is kept to be put back.
func (w *world) foundBefore(want gpu.ComputeMode) {
	w.t.Helper()
	if mode, known, err := w.dir.FoundMode("a"); err != nil || !known || mode != want {
		w.t.Errorf("found before: %s, %t, %v", mode, known, err)
	}
}

// nothingToPutBack checks that no compute mode is kept to be put back.
func (w *world) nothingToPutBack() {
	w.t.Helper()
	_, known, err := w.dir.FoundMode("a")
	expect.NoError(w.t, err)
	expect.Equal(w.t, false, known, "there is something to put back")
}

// neverOpen checks that the GPU was not open to everybody at any time.
func (w *world) neverOpen(uuid string) {
	w.t.Helper()
	if modes := w.device(uuid).was(); slices.Contains(modes, gpu.ComputeDefault) {
		w.t.Errorf("GPU %s was open to everybody: its compute modes were %s", uuid, modes)
	}
}

// end asks the supervisor to end, and waits until it has.
func (w *world) end() {
	w.t.Helper()
	w.stop()
	w.pass(func() bool { return len(w.ended) > 0 }, "the supervisor ends")
}

func TestNobodyIsBesideMPS(t *testing.T) {
	w, d := guarded(t, gpu.ComputeDefault)
	started := make(chan gpu.ComputeMode, 1)
	w.control.onStart = func(string) { started <- d.is() }
	found := make(chan bool, 1)
	d.onSet = func(_ *fakeDevice, mode gpu.ComputeMode) {
		if mode == gpu.ComputeExclusiveProcess {
			_, err := mps.SocketAt(w.control.socket("a"))
			found <- err == nil
		}
	}
	w.ready("a")
	expect.Equal(t, gpu.ComputeProhibited, <-started, "the daemon was started in compute mode")
	// Whoever would use MPS finds it before anybody can be beside it.
	if !<-found {
		t.Error("clients did not find the daemon when the GPU was opened")
	}
	w.servesAlone(d) // else the GPU's only context is anybody's
	expect.Equal(t, true, w.status("a").DriverEnforced, "the driver keeps others away")
	w.foundBefore(gpu.ComputeDefault)
}

// As long as there is no server the GPU is closed to everybody, whatever became of it.
func TestClosedWhileThereIsNoServer(t *testing.T) {
	for name, end := range map[string]func(w *world){
		"the daemon was killed": func(w *world) { w.latest("a").end("signal: killed", true) },
		"the server was killed": func(w *world) { w.control.endServer("a") },
	} {
		t.Run(name, func(t *testing.T) {
			w, d := guarded(t, gpu.ComputeDefault)
			w.ready("a")
			end(w)
			// The clock stands still.
			w.awaitState("a", mps.Down)
			expect.Equal(t, gpu.ComputeProhibited, d.is(), "compute mode")
			w.pass(func() bool { return w.status("a").State == mps.Ready }, "it is ready again")
			w.servesAlone(d)
			expect.Equal(t, 1, w.status("a").Restarts, "restarts")
		})
	}
}

func TestModeFoundIsPutBack(t *testing.T) {
	for _, found := range []gpu.ComputeMode{gpu.ComputeDefault, gpu.ComputeExclusiveProcess} {
		t.Run(found.String(), func(t *testing.T) {
			check := func(w *world, d *fakeDevice) {
				t.Helper()
				w.nothingToPutBack()
				expect.Equal(t, found, d.is(), "compute mode")
			}
			t.Run("the mode of the node has changed", func(t *testing.T) {
				w, d := guarded(t, found)
				w.ready("a")
				w.uses(mps.Use{})
				w.pass(func() bool { return w.control.server("a") == 0 && d.is() == found }, "the GPU is everybody's")
				w.plugin(mps.Idle)
				w.pass(func() bool { return w.status("a").Reason == nodeIdle }, "the daemon has ended")
				check(w, d)
			})
			t.Run("the supervisor has ended", func(t *testing.T) {
				w, d := guarded(t, found)
				w.ready("a")
				w.end()
				check(w, d)
			})
			t.Run("the daemon is down", func(t *testing.T) {
				w, d := guarded(t, found)
				w.control.startErr = errors.New("no such file")
				w.run()
				w.awaitState("a", mps.Down)
				w.end()
				check(w, d)
			})
		})
	}
}

// Containers of claims are there still, and may start programs.
func TestClosedBetweenTwoSupervisors(t *testing.T) {
	w, d := guarded(t, gpu.ComputeDefault)
	w.uses(mps.Use{Reserved: true, Claimed: true, Limits: mps.Limits{MemoryMiB: 1024, ThreadPercent: 100}})
	w.ready("a")
	w.end()
	expect.Equal(t, gpu.ComputeProhibited, d.is(), "compute mode")
	w.neverOpen("a")
	next := &world{t: t, dir: w.dir, control: newFakeControl(w.dir), clock: w.clock, ended: make(chan error, 1),
		devices: w.devices}
	next.has("a")
	next.run()
	next.awaitState("a", mps.Ready)
	next.uses(mps.Use{Reserved: true})
	next.pass(func() bool { s := next.status("a"); return s.Use != nil && !s.Use.Claimed }, "the claim is gone")
	next.end()
	expect.Equal(t, gpu.ComputeDefault, d.is(), "compute mode, which the first supervisor found")
}

// The plugin's last word is that nothing uses MPS.
func TestClaimsThatNobodyHasTakenBack(t *testing.T) {
	w, d := guarded(t, gpu.ComputeDefault)
	w.uses(mps.Use{Claimed: true})
	w.ready("a")
	w.plugin(mps.Idle)
	w.awaitMode(d, gpu.ComputeDefault)
}

// What a supervisor that was killed has left is put back where nothing uses MPS any more.
func TestLeftByOneThatWasKilled(t *testing.T) {
	w, d := guarded(t, gpu.ComputeProhibited)
	w.uses(mps.Use{})
	expect.NoError(t, w.dir.KeepFoundMode("a", gpu.ComputeDefault))
	w.plugin(mps.Idle)
	w.run()
	w.awaitMode(d, gpu.ComputeDefault)
	w.pass(func() bool { _, known, _ := w.dir.FoundMode("a"); return !known }, "it is forgotten")
}

// Only a new process can ask the driver, which was replaced meanwhile.
func TestLeftByOneThatWasKilledOfAnotherDriver(t *testing.T) {
	w, _ := guarded(t, gpu.ComputeProhibited)
	w.uses(mps.Use{})
	expect.NoError(t, w.dir.KeepFoundMode("a", gpu.ComputeDefault))
	w.plugin(mps.Idle)
	w.readErr = fmt.Errorf("%w: another library", ErrStale)
	w.run()
	expect.ErrorIs(t, w.result(), ErrStale)
}

// Somebody cleans up in /run. Whoever comes later is to know what to put back.
func TestModeFoundIsNotLostWithItsFile(t *testing.T) {
	t.Run("the server runs", func(t *testing.T) {
		w, _ := guarded(t, gpu.ComputeDefault)
		w.ready("a")
		// The supervisor may write there at the same moment.
		w.eventually(func() bool { return os.RemoveAll(filepath.Dir(w.dir.PipeDir("a"))) == nil }, "it is removed")
		w.pass(func() bool { mode, known, _ := w.dir.FoundMode("a"); return known && mode == gpu.ComputeDefault },
			"it is known again")
	})
	t.Run("the daemon is down", func(t *testing.T) {
		w, d := guarded(t, gpu.ComputeDefault)
		w.ready("a")
		w.latest("a").end("signal: killed", true)
		w.awaitState("a", mps.Down) // the clock stands still
		expect.NoError(t, w.dir.ForgetFoundMode("a"))
		w.pass(func() bool { return w.status("a").State == mps.Ready }, "it serves again")
		w.foundBefore(gpu.ComputeDefault)
		w.end()
		expect.Equal(t, gpu.ComputeDefault, d.is(), "compute mode")
	})
}

// A supervisor that was killed between the two steps has changed nothing.
func TestKilledBeforeTheModeWasSet(t *testing.T) {
	w, d := guarded(t, gpu.ComputeDefault)
	expect.NoError(t, w.dir.KeepFoundMode("a", gpu.ComputeDefault))
	w.ready("a")
	w.awaitMode(d, gpu.ComputeExclusiveProcess)
	w.end()
	expect.Equal(t, gpu.ComputeDefault, d.is(), "compute mode")
}

func TestForeignProcessesKeepTheGPU(t *testing.T) {
	w, d := guarded(t, gpu.ComputeDefault)
	d.pids = []int{4712, 4711}
	w.run()
	w.awaitState("a", mps.Down)
	expect.Says(t, w.status("a").Reason, "process 4711 4712")
	if len(d.was()) > 0 || len(w.control.started("a")) > 0 {
		t.Errorf("compute modes were set: %s, daemons started: %d", d.was(), len(w.control.started("a")))
	}
	d.set(func(d *fakeDevice) { d.pids = nil })
	w.pass(func() bool { return w.status("a").State == mps.Ready }, "it is ready")
	// It was looked at all the time, and not more and more seldom.
	expect.Equal(t, nil, w.clock.of(4*time.Second, 8*time.Second), "long waits")
}

// A program that comes in at the last moment is not shut in.
func TestForeignProcessAtTheLastMoment(t *testing.T) {
	w, d := guarded(t, gpu.ComputeDefault)
	d.onSet = func(d *fakeDevice, mode gpu.ComputeMode) {
		if mode == gpu.ComputeProhibited {
			d.pids = []int{4711}
		}
	}
	w.run()
	w.awaitState("a", mps.Down)
	w.awaitMode(d, gpu.ComputeDefault)
	w.nothingToPutBack()
}

func TestSomebodyElseHasProhibitedTheGPU(t *testing.T) {
	w, d := guarded(t, gpu.ComputeProhibited)
	w.run()
	w.awaitState("a", mps.Down)
	expect.Says(t, w.status("a").Reason, "--compute-mode=DEFAULT")
	w.end()
	expect.Equal(t, nil, d.was(), "compute modes that were set")
}

func TestServerThatDoesNotStart(t *testing.T) {
	w, d := guarded(t, gpu.ComputeDefault)
	w.control.stillborn = true
	d.onSet = func(d *fakeDevice, mode gpu.ComputeMode) {
		if mode == gpu.ComputeExclusiveProcess {
			d.pids = []int{4711} // it was faster than the server
		}
	}
	w.run()
	w.pass(func() bool { return w.status("a").State == mps.Down }, "it is told of")
	expect.Says(t, w.status("a").Reason, "MPS server", "4711")
	expect.Equal(t, gpu.ComputeProhibited, d.is(), "compute mode")
	// As long as it is there nothing is tried, and then at once.
	w.control.set(func(c *fakeControl) { c.stillborn = false })
	w.pass(func() bool { return strings.HasPrefix(w.status("a").Reason, errForeign.Error()) }, "it is waited for")
	d.set(func(d *fakeDevice) { d.pids, d.onSet = nil, nil })
	w.pass(func() bool { return w.status("a").State == mps.Ready }, "it is ready")
	expect.Equal(t, nil, w.clock.of(4*time.Second, 8*time.Second), "long waits")
}

// The driver forgets the mode when it is reloaded, and root can set it.
func TestModeThatSomebodySetsIsSetAgain(t *testing.T) {
	w, d := guarded(t, gpu.ComputeDefault)
	w.ready("a")
	d.set(func(d *fakeDevice) { d.mode = gpu.ComputeDefault })
	w.awaitMode(d, gpu.ComputeExclusiveProcess)
	if starts := len(w.control.started("a")); starts != 1 || w.status("a").State != mps.Ready {
		t.Errorf("%d starts, status %+v", starts, w.status("a"))
	}
}

func TestGPUWithoutComputeModes(t *testing.T) {
	w := newWorld(t, "a")
	w.uses(mps.Use{Reserved: true})
	w.ready("a")
	if s := w.status("a"); s.DriverEnforced || w.control.server("a") != 0 {
		t.Errorf("status %+v, server %d", s, w.control.server("a"))
	}
}

// A GPU that is lost keeps what it has until it can be asked.
func TestGPUThatCannotBeAsked(t *testing.T) {
	w, d := guarded(t, gpu.ComputeDefault)
	d.err = errors.New("GPU is lost")
	w.run()
	w.awaitState("a", mps.Down)
	expect.Says(t, w.status("a").Reason, "GPU is lost")
	d.set(func(d *fakeDevice) { d.err = nil })
	w.pass(func() bool { return w.status("a").State == mps.Ready }, "it is ready")
}

// A supervisor that ends, as for an update, leaves a GPU closed of which the use was lost: claims may have it.
func TestGPUOfALostUseStaysClosedAtTheEnd(t *testing.T) {
	w, d := guarded(t, gpu.ComputeDefault)
	w.uses(claimed)
	w.ready("a")
	expect.NoError(t, os.Remove(filepath.Join(w.dir.Files("a"), mps.UseFile)))
	w.end()
	expect.Equal(t, gpu.ComputeProhibited, d.is(), "the compute mode is")
}
