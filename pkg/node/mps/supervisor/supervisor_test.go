// SPDX-License-Identifier: Apache-2.0

package supervisor

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/mps"
)

func TestEndIsToldAtOnceAndToNobodyElse(t *testing.T) {
	w := newWorld(t, "a", "b")
	w.ready("a", "b")

	w.latest("a").end("signal: killed", true)
	// The clock stands still.
	w.awaitState("a", mps.Down)
	w.eventually(func() bool { return strings.Contains(w.status("a").Reason, "signal: killed") }, "it is told why")
	if s := w.status("b"); s.State != mps.Ready || len(w.control.started("b")) != 1 {
		t.Errorf("the other GPU's daemon: %+v", s)
	}
}

// crash ends the daemon and waits until the next one is ready.
func crash(w *world) {
	w.t.Helper()
	starts := len(w.control.started("a"))
	w.latest("a").end("it crashed", false)
	w.awaitState("a", mps.Down)
	w.pass(func() bool { return len(w.control.started("a")) > starts }, "the daemon is started again")
	w.awaitState("a", mps.Ready)
}

func TestRestartsSlowDown(t *testing.T) {
	w := newWorld(t, "a")
	w.ready("a")
	const s = time.Second
	delays := []time.Duration{1 * s, 2 * s, 4 * s, 8 * s, 16 * s, 30 * s, 30 * s}
	for range delays {
		crash(w)
	}
	// One that has served for long is not one that keeps ending.
	w.clock.Step(steadyAfter)
	crash(w)
	expect.Equal(t, append(delays, 1*s), w.clock.of(delays...), "waits before the next start")
	expect.Equal(t, len(delays)+1, w.status("a").Restarts, "restarts")
}

func TestNotReadyBeforeItAnswers(t *testing.T) {
	w := newWorld(t, "a")
	w.control.askErr = context.DeadlineExceeded
	w.run()
	w.eventually(func() bool { return len(w.control.started("a")) == 1 }, "the daemon is started")
	first := w.latest("a")
	w.awaitState("a", mps.Starting)
	w.pass(func() bool { return w.status("a").State == mps.Down }, "it is given up")
	expect.Says(t, w.status("a").Reason, "does not answer")
	if <-first.Done(); !first.killed {
		t.Error("the daemon that does not answer still runs")
	}
	w.control.set(func(c *fakeControl) { c.askErr = nil })
	w.pass(func() bool { return w.status("a").State == mps.Ready }, "it is ready")
}

func TestDaemonThatCannotStart(t *testing.T) {
	w := newWorld(t, "a")
	w.control.startErr = errors.New("no such file")
	w.run()
	w.awaitState("a", mps.Down)
	expect.Equal(t, "no such file", w.status("a").Reason, "reason")
	w.control.set(func(c *fakeControl) { c.startErr = nil })
	w.pass(func() bool { return w.status("a").State == mps.Ready }, "it is ready")
}

func TestStop(t *testing.T) {
	for name, stubborn := range map[string]bool{"it quits": false, "its clients hold it": true} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, "a")
			w.control.stubborn = stubborn
			w.ready("a")
			w.stop()
			expect.NoError(t, w.result())
			expect.Equal(t, stubborn, w.latest("a").killed, "it was killed")
			if s := w.status("a"); s.State != mps.Down || s.Reason != stopped {
				t.Errorf("status %+v", s)
			}
			expect.Error(t, w.dir.Check("a"), "does not run")
		})
	}
}

// While a daemon waits for its clients to leave, nothing new starts there.
func TestToldDownBeforeItQuits(t *testing.T) {
	w := newWorld(t, "a")
	w.control.stubborn = true
	w.ready("a")
	w.stop()
	w.eventually(func() bool { return w.control.asked(commandQuit) }, "the daemon is told to quit")
	select {
	case <-w.latest("a").Done():
		t.Error("the daemon has ended before its time")
	default:
	}
	expect.Error(t, w.dir.Check("a"), stopping)
}

func TestGPUsThatAppearLater(t *testing.T) {
	w := newWorld(t, "a")
	w.machine.Partitioned = []gpu.Partitioned{{GPU: gpu.GPU{Index: 1, UUID: "b"}}}
	w.ready("a")
	w.checkSays("b", "no MPS control daemon for this GPU")
	w.set(func() { w.machine.Partitioned = nil })
	w.has("a", "b")
	w.pass(func() bool { return w.status("b").State == mps.Ready }, "the new GPU has a daemon")
	expect.Equal(t, 1, len(w.control.started("a")), "starts of the other GPU's daemon")
}

func TestNoDriverYet(t *testing.T) {
	w := newWorld(t, "a")
	w.readErr = errors.New("no NVIDIA driver")
	w.run()
	w.eventually(w.clock.HasWaiters, "the supervisor waits")
	w.set(func() { w.readErr = nil })
	w.pass(func() bool { return w.status("a").State == mps.Ready }, "it is ready")
}

// A driver that was replaced is not read by the process that has the old one. While nothing
// is lost by it, that process ends and the next one starts the daemons.
func TestDriverThatWasReplaced(t *testing.T) {
	stale := fmt.Errorf("%w: another library", ErrStale)
	t.Run("no daemon runs", func(t *testing.T) {
		w := newWorld(t, "a")
		plugin := w.plugin(mps.Idle)
		w.run()
		w.eventually(w.clock.HasWaiters, "the supervisor waits")
		w.set(func() { w.readErr = stale })
		plugin.declare(mps.InUse)
		expect.ErrorIs(t, w.result(), ErrStale)
	})
	t.Run("a daemon runs", func(t *testing.T) {
		w := newWorld(t, "a")
		w.machine.Faults = []gpu.Fault{{Index: 1, UUID: "b", Reason: gpu.FaultUnreadable}}
		w.ready("a")
		reads := w.timesRead()
		w.set(func() { w.readErr = stale })
		w.pass(func() bool { return w.timesRead() > reads+1 }, "the GPUs are read again")
		w.kept()
		if len(w.ended) > 0 {
			t.Error("the supervisor has ended, and its daemon with it")
		}
	})
}

func TestWhatAnEarlierSupervisorSaidIsForgotten(t *testing.T) {
	w := newWorld(t)
	expect.NoError(t, w.dir.SetStatus("gone", mps.Status{State: mps.Ready}))
	w.run()
	w.eventually(func() bool { return w.status("gone").State == "" }, "the status is gone")
}

func TestDirThatCannotBeWritten(t *testing.T) {
	w := newWorld(t, "a")
	w.dir = mps.Dir(filepath.Join(t.TempDir(), "file"))
	expect.NoError(t, os.WriteFile(string(w.dir), nil, 0o644))
	w.run()
	expect.Error(t, w.result(), string(w.dir), "may write")
}

// Containers of an earlier version have the directory mounted: they keep theirs, and
// nothing in it is in a daemon's way.
func TestPipeDirIsCleanedAndKept(t *testing.T) {
	w := newWorld(t, "a")
	pipes := w.dir.PipeDir("a")
	left := []string{"stale", "control_privileged", "log", filepath.Join(mps.SocketName, "below")}
	for _, name := range left {
		expect.NoError(t, os.MkdirAll(filepath.Join(pipes, name), 0o700))
	}
	expect.NoError(t, os.Chmod(pipes, 0o777|os.ModeSticky))
	before := stat(t, pipes)
	w.ready("a")
	expect.Equal(t, []string{mps.SocketName}, names(t, pipes), "clients have")
	after := stat(t, pipes)
	if !os.SameFile(before, after) {
		t.Error("containers that have the directory mounted see another one")
	}
	expect.Equal(t, 0o755, after.Mode()&^os.ModeDir, "others than root may write: mode")
}

func TestBoundLogs(t *testing.T) {
	dir := t.TempDir()
	for name, size := range map[string]int{"control.log": maxLogBytes + 1<<16, "server.log": 10, "other": maxLogBytes +
		1<<16} {
		expect.NoError(t, os.WriteFile(filepath.Join(dir, name), make([]byte, size), 0o644))
	}
	expect.NoError(t, boundLogs(dir))
	for name, want := range map[string]int64{"control.log": 0, "server.log": 10, "other": maxLogBytes + 1<<16} {
		if info, err := os.Stat(filepath.Join(dir, name)); err != nil || info.Size() != want {
			t.Errorf("%s: %v bytes, want %d (%v)", name, info.Size(), want, err)
		}
	}
}
