package supervisor

import (
	"context"
	"errors"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/gpushare/dra-driver-gpushare/pkg/mps"
)

func (w *world) checkSays(uuid, want string) {
	w.t.Helper()
	if err := w.dir.Check(uuid); err == nil || !strings.Contains(err.Error(), want) {
		w.t.Errorf("a claim would be prepared: %v, want %q", err, want)
	}
}

func TestSocketTakenAway(t *testing.T) {
	for name, take := range map[string]func(path string) error{
		"removed":               os.Remove,
		"replaced":              func(path string) error { return errors.Join(os.Remove(path), unix.Mkfifo(path, 0o600)) },
		"closed to other users": func(path string) error { return os.Chmod(path, 0) },
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, "a")
			w.run()
			w.awaitState("a", mps.Ready)
			if err := w.dir.Check("a"); err != nil {
				t.Fatal(err)
			}
			if err := take(w.control.socket("a")); err != nil {
				t.Fatal(err)
			}
			// The clock stands still: nobody has to be told.
			w.checkSays("a", "removed or changed")
			w.pass(func() bool { return w.dir.Check("a") == nil }, "the daemon is reached again")
			if starts := len(w.control.started("a")); starts != 1 {
				t.Errorf("%d starts: the daemon's clients were ended", starts)
			}
		})
	}
}

// silenced is a world whose only daemon cannot be asked any more.
func silenced(t *testing.T, askErr error) *world {
	t.Helper()
	w := newWorld(t, "a")
	w.run()
	w.awaitState("a", mps.Ready)
	w.control.set(func(c *fakeControl) { c.askErr = askErr })
	w.pass(func() bool { return w.status("a").State == mps.Down }, "the silence is told of")
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
	since := w.status("a").Since
	hung := w.latest("a")
	w.pass(func() bool { return strings.Contains(w.status("a").Reason, "was killed") }, "it is given up")
	if after := w.status("a").Since.Sub(since); after < hungLimit {
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
	w.run()
	w.awaitState("a", mps.Ready)
	w.control.set(func(c *fakeControl) { c.askErr = ErrNotAsked })
	w.later()
	if err := w.dir.Check("a"); err != nil {
		t.Error(err)
	}
	w.kept()
}

// Nobody waits for the answer of a daemon that has ended.
func TestEndIsToldWhileItIsAsked(t *testing.T) {
	w := newWorld(t, "a")
	w.run()
	w.awaitState("a", mps.Ready)
	w.control.set(func(c *fakeControl) { c.hang, c.commands = true, nil })
	w.pass(func() bool { return w.control.asked(commandProbe) }, "the daemon is asked")
	w.latest("a").end("signal: killed", true)
	w.awaitState("a", mps.Down)
	w.checkSays("a", "signal: killed")
}
