// SPDX-License-Identifier: Apache-2.0

package supervisor

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/mps"
)

func (w *world) checkSays(uuid, want string) {
	w.t.Helper()
	expect.Error(w.t, w.dir.Check(uuid), want)
}

func TestSocketTakenAway(t *testing.T) {
	for name, take := range map[string]func(path string) error{
		"removed":               os.Remove,
		"replaced":              func(path string) error { return errors.Join(os.Remove(path), unix.Mkfifo(path, 0o600)) },
		"closed to other users": func(path string) error { return os.Chmod(path, 0) },
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, "a")
			w.ready("a")
			expect.NoError(t, w.dir.Check("a"))
			expect.NoError(t, take(w.control.socket("a")))
			// The clock stands still: nobody has to be told.
			w.checkSays("a", "removed or changed")
			w.pass(func() bool { return w.dir.Check("a") == nil }, "the daemon is reached again")
			expect.Equal(t, 1, len(w.control.started("a")), "starts: the daemon's clients were ended")
		})
	}
}

// unlinkable makes it impossible to lead clients to the GPU's daemon, as a full file
// system does, until the returned function is called.
func (w *world) unlinkable(uuid string) (possible func()) {
	w.t.Helper()
	spare := filepath.Join(w.dir.SpareLink(uuid), "in the way")
	expect.NoError(w.t, errors.Join(os.MkdirAll(spare, 0o700), os.Remove(w.control.socket(uuid))))
	return func() { expect.NoError(w.t, os.RemoveAll(filepath.Dir(spare))) }
}

// A daemon that new clients cannot be led to goes on for those that it has.
func TestClientsCannotBeLedToTheDaemon(t *testing.T) {
	w := newWorld(t, "a")
	w.ready("a")
	possible := w.unlinkable("a")
	w.pass(func() bool { return w.status("a").State == mps.Down }, "it is told of")
	w.checkSays("a", "new clients do not find it")
	w.later()
	w.kept()
	possible()
	w.pass(func() bool { return w.dir.Check("a") == nil }, "the daemon is reached again")
	w.kept()
}

// A daemon that is silent as well is open only when both are over.
func TestSilentAndOutOfReach(t *testing.T) {
	w := silenced(t, errors.New("unknown version"))
	possible := w.unlinkable("a")
	w.pass(func() bool { return strings.Contains(w.status("a").Reason, "new clients do not find it") }, "it is told of")
	possible()
	w.pass(func() bool { return strings.Contains(w.status("a").Reason, "does not answer") }, "the rest is told of")
	w.answers()
	w.kept()
}

// Nobody will ever reach a daemon whose own socket is gone.
func TestSocketGoneForGood(t *testing.T) {
	w := newWorld(t, "a")
	w.ready("a")
	lost := w.latest("a")
	expect.NoError(t, os.RemoveAll(w.dir.DaemonDir("a")))
	w.pass(func() bool { return w.status("a").State == mps.Down }, "it is told of")
	w.pass(func() bool { return w.status("a").Restarts == 1 && w.dir.Check("a") == nil }, "another daemon serves")
	if <-lost.Done(); !lost.killed {
		t.Error("it still runs")
	}
}

// What could not be told is told as soon as it can be.
func TestToldLater(t *testing.T) {
	w := newWorld(t, "a")
	w.ready("a")
	// Where the status is written before it takes the place of the last one.
	blocked := filepath.Join(filepath.Dir(w.dir.PipeDir("a")), "status.json.tmp")
	possible := w.unlinkable("a")
	expect.NoError(t, os.MkdirAll(filepath.Join(blocked, "d"), 0o700))
	w.pass(func() bool { return w.status("a").State == "" }, "nothing is said that does not hold")
	expect.NoError(t, os.RemoveAll(blocked))
	w.pass(func() bool { return w.status("a").State == mps.Down }, "it is told of")
	possible()
	w.pass(func() bool { return w.dir.Check("a") == nil }, "the daemon is reached again")
	w.kept()
}

// silenced is a world whose only daemon cannot be asked any more.
func silenced(t *testing.T, askErr error) *world {
	t.Helper()
	w := newWorld(t, "a")
	w.ready("a")
	// Not when it is told of: the clock may step between the two.
	w.silentFrom = w.clock.Now()
	w.control.set(func(c *fakeControl) { c.askErr = askErr })
	want := mps.Down
	if errors.Is(askErr, context.DeadlineExceeded) {
		want = mps.Late
	}
	w.pass(func() bool { return w.status("a").State == want }, "the silence is told of")
	w.checkSays("a", "does not answer: "+askErr.Error())
	return w
}

// answers lets daemons answer again, and waits until clients are served.
func (w *world) answers() {
	w.t.Helper()
	w.control.set(func(c *fakeControl) { c.askErr = nil })
	w.pass(func() bool { return w.dir.Check("a") == nil }, "it is ready again")
}

func (w *world) kept() {
	w.t.Helper()
	if s := w.status("a"); s.Restarts != 0 || len(w.control.started("a")) != 1 {
		w.t.Errorf("the daemon's clients were ended: %+v", s)
	}
}

// A daemon that was busy for a moment keeps its clients.
func TestSilentForAMoment(t *testing.T) {
	w := silenced(t, context.DeadlineExceeded)
	w.answers()
	w.kept()
}

func TestSilentForGood(t *testing.T) {
	w := silenced(t, context.DeadlineExceeded)
	hung := w.latest("a")
	w.pass(func() bool { return strings.Contains(w.status("a").Reason, "was killed") }, "it is given up")
	if after := w.status("a").Since.Sub(w.silentFrom); after < hungLimit {
		t.Errorf("it was given up after %s, want %s", after, hungLimit)
	}
	if <-hung.Done(); !hung.killed {
		t.Error("it still runs")
	}
	w.answers()
}

// later lets more time pass than a silent daemon has, with the daemon asked
// all along.
func (w *world) later() {
	w.t.Helper()
	for end := w.clock.Now().Add(2 * hungLimit); w.clock.Now().Before(end); {
		w.control.set(func(c *fakeControl) { c.commands = nil })
		w.pass(func() bool { return w.control.asked(commandProbe) }, "the daemon is asked")
	}
}

// A control program that does not get on with the daemon ends no client.
func TestRefusedForGood(t *testing.T) {
	w := silenced(t, errors.New("unknown version"))
	w.later()
	w.kept()
	w.answers()
	w.kept()
}

// The driver's files are gone for a while; the daemon is not.
func TestCannotBeAsked(t *testing.T) {
	w := newWorld(t, "a")
	w.ready("a")
	w.control.set(func(c *fakeControl) { c.askErr = ErrNotAsked })
	w.later()
	expect.NoError(t, w.dir.Check("a"))
	w.kept()
}

// Nobody waits for the answer of a daemon that has ended.
func TestEndIsToldWhileItIsAsked(t *testing.T) {
	w := newWorld(t, "a")
	w.ready("a")
	w.control.set(func(c *fakeControl) { c.hang, c.commands = true, nil })
	w.pass(func() bool { return w.control.asked(commandProbe) }, "the daemon is asked")
	w.latest("a").end("signal: killed", true)
	w.awaitState("a", mps.Down)
	w.eventually(func() bool { return strings.Contains(w.status("a").Reason, "signal: killed") }, "it is told why")
	w.checkSays("a", "signal: killed")
}

// Nobody starts a container in the seconds that it takes until all has ended.
func TestEndIsToldBeforeAllHasEnded(t *testing.T) {
	for name, end := range map[string]func(w *world){
		"of the daemon": func(w *world) { w.latest("a").leave() },
		"of the server": func(w *world) { w.control.endServer("a") },
	} {
		t.Run(name, func(t *testing.T) {
			w, _ := guarded(t, gpu.ComputeDefault)
			w.control.undead = true
			w.ready("a")
			end(w)
			// The clock stands still.
			w.awaitState("a", mps.Down)
			w.checkSays("a", "ended")
			stuck := w.latest("a")
			w.control.set(func(c *fakeControl) { c.undead = false })
			w.pass(func() bool { return strings.Contains(w.status("a").Reason, "does not end") }, "it is awaited")
			stuck.end("at last", true)
			w.pass(func() bool { return w.status("a").State == mps.Ready }, "another one runs")
		})
	}
}

// A daemon that the kernel does not let end, as one whose GPU hangs, keeps its GPU closed. The
// others' daemons come and go with their use all the same, and so does the supervisor.
func TestDaemonThatCannotBeKilled(t *testing.T) {
	w := newWorld(t, "a", "b")
	w.control.undead = true
	w.ready("a", "b")
	stuck := w.latest("a")
	w.latest("b").end("crashed", false)
	w.control.set(func(c *fakeControl) { c.undead, c.stubborn = false, true })
	w.pass(func() bool { return len(w.control.started("b")) == 2 && w.status("b").State == mps.Ready }, "b's is another")
	plugin := w.plugin(mps.Idle)
	w.pass(func() bool { return w.status("a").Reason == nodeIdle && w.status("b").Reason == nodeIdle }, "none is needed")
	plugin.declare(mps.InUse)
	w.pass(func() bool { return w.status("b").State == mps.Ready }, "b's runs again")
	stuck.end("at last", true)
}

// Beside a daemon that was killed and has not ended no other is started.
func TestDaemonThatHangsAndCannotBeKilled(t *testing.T) {
	w := newWorld(t, "a")
	w.control.undead = true
	w.ready("a")
	stuck := w.latest("a")
	w.control.set(func(c *fakeControl) { c.askErr = context.DeadlineExceeded })
	w.pass(func() bool { return strings.Contains(w.status("a").Reason, "does not end") }, "it is told")
	w.looksFor(5 * time.Minute)
	if starts := len(w.control.started("a")); starts != 1 || w.status("a").State != mps.Down {
		t.Errorf("%d starts, and it is %s", starts, w.status("a").State)
	}
	w.control.set(func(c *fakeControl) { c.askErr, c.undead = nil, false })
	stuck.end("at last", true)
	w.pass(func() bool { return w.status("a").State == mps.Ready && len(w.control.started("a")) == 2 }, "another one runs")
}

// A daemon that is late while its server is started is awaited: it is not killed, nor started again, for what takes
// long on a busy node.
func TestLateWhileItsServerStarts(t *testing.T) {
	w, _ := guarded(t, gpu.ComputeDefault)
	w.control.onAsk = func(command string) {
		if command == commandStartServer {
			w.control.askErr, w.control.onAsk = context.DeadlineExceeded, nil
		}
	}
	w.run()
	w.pass(func() bool { return w.status("a").State == mps.Late }, "it is late")
	w.checkSays("a", "does not answer")
	w.answers()
	w.kept()
	if w.control.server("a") == 0 {
		t.Error("it has no server")
	}
}
