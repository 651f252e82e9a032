// SPDX-License-Identifier: Apache-2.0

package supervisor

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
	"github.com/gpushare/dra-driver-gpushare/pkg/mps"
)

// fakeDevice is a card whose compute mode cannot be set, unless a test says so.
type fakeDevice struct {
	mu       sync.Mutex
	settable bool
	mode     gpu.ComputeMode
	pids     []int
	err      error // of all calls
	// modes are those that were set, in their order.
	modes []gpu.ComputeMode
	// onSet is called before a mode is set.
	onSet func(d *fakeDevice, mode gpu.ComputeMode)
}

func (d *fakeDevice) ComputeMode(context.Context) (gpu.ComputeMode, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.mode, d.err
}

func (d *fakeDevice) SetComputeMode(_ context.Context, mode gpu.ComputeMode) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.err != nil {
		return d.err
	}
	if !d.settable {
		return gpu.ErrComputeModeFixed
	}
	if d.onSet != nil {
		d.onSet(d, mode)
	}
	if mode != d.mode {
		d.modes = append(d.modes, mode)
	}
	d.mode = mode
	return nil
}

func (d *fakeDevice) Processes(context.Context) ([]int, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Clone(d.pids), d.err
}

func (d *fakeDevice) set(change func(d *fakeDevice)) {
	d.mu.Lock()
	defer d.mu.Unlock()
	change(d)
}

func (d *fakeDevice) is() gpu.ComputeMode {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.mode
}

func (d *fakeDevice) was() []gpu.ComputeMode {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Clone(d.modes)
}

// device is the card, whose compute mode cannot be set unless it is settable.
func (w *world) device(uuid string) *fakeDevice {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.devices[uuid] == nil {
		w.devices[uuid] = &fakeDevice{}
	}
	return w.devices[uuid]
}

// guarded is a world whose card is for MPS alone, found in this compute mode.
func guarded(t *testing.T, found gpu.ComputeMode) (*world, *fakeDevice) {
	t.Helper()
	w := newWorld(t, "a")
	d := w.device("a")
	d.settable, d.mode = true, found
	w.uses(mps.Use{Reserved: true})
	return w, d
}

func (w *world) uses(u mps.Use) {
	w.t.Helper()
	if err := w.dir.SetUse("a", u); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) awaitMode(d *fakeDevice, mode gpu.ComputeMode) {
	w.t.Helper()
	w.pass(func() bool { return d.is() == mode }, "the compute mode is "+mode.String())
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
	w.run()
	w.awaitState("a", mps.Ready)
	if mode := <-started; mode != gpu.ComputeProhibited {
		t.Errorf("the daemon was started in compute mode %s", mode)
	}
	// Whoever would use MPS finds it before anybody can be beside it.
	if !<-found {
		t.Error("clients did not find the daemon when the GPU was opened")
	}
	if w.control.server("a") == 0 {
		t.Error("the GPU's only context is anybody's: no server was started")
	}
	if s := w.status("a"); !s.DriverEnforced || d.is() != gpu.ComputeExclusiveProcess {
		t.Errorf("compute mode %s, status %+v", d.is(), s)
	}
	if mode, known, err := w.dir.FoundMode("a"); err != nil || !known || mode != gpu.ComputeDefault {
		t.Errorf("found before: %s, %t, %v", mode, known, err)
	}
}

// As long as there is no server the card is closed to everybody, whatever became of it.
func TestClosedWhileThereIsNoServer(t *testing.T) {
	for name, end := range map[string]func(w *world){
		"the daemon was killed": func(w *world) { w.latest("a").end("signal: killed", true) },
		"the server was killed": func(w *world) { w.control.endServer("a") },
	} {
		t.Run(name, func(t *testing.T) {
			w, d := guarded(t, gpu.ComputeDefault)
			w.run()
			w.awaitState("a", mps.Ready)
			end(w)
			// The clock stands still.
			w.awaitState("a", mps.Down)
			if mode := d.is(); mode != gpu.ComputeProhibited {
				t.Errorf("compute mode %s", mode)
			}
			w.pass(func() bool { return w.status("a").State == mps.Ready }, "it is ready again")
			if d.is() != gpu.ComputeExclusiveProcess || w.control.server("a") == 0 {
				t.Errorf("compute mode %s, server %d", d.is(), w.control.server("a"))
			}
			if restarts := w.status("a").Restarts; restarts != 1 {
				t.Errorf("%d restarts", restarts)
			}
		})
	}
}

func TestModeFoundIsPutBack(t *testing.T) {
	for _, found := range []gpu.ComputeMode{gpu.ComputeDefault, gpu.ComputeExclusiveProcess} {
		t.Run(found.String(), func(t *testing.T) {
			check := func(w *world, d *fakeDevice) {
				t.Helper()
				if _, known, err := w.dir.FoundMode("a"); known || err != nil || d.is() != found {
					t.Errorf("compute mode %s, to be put back %t (%v)", d.is(), known, err)
				}
			}
			t.Run("the mode of the node has changed", func(t *testing.T) {
				w, d := guarded(t, found)
				w.run()
				w.awaitState("a", mps.Ready)
				w.uses(mps.Use{})
				w.pass(func() bool { return w.control.server("a") == 0 && d.is() == found }, "the GPU is everybody's")
				w.unneeded()
				w.pass(func() bool { return w.status("a").Reason == unneeded }, "the daemon has ended")
				check(w, d)
			})
			t.Run("the supervisor has ended", func(t *testing.T) {
				w, d := guarded(t, found)
				w.run()
				w.awaitState("a", mps.Ready)
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
	w.run()
	w.awaitState("a", mps.Ready)
	w.end()
	if d.is() != gpu.ComputeProhibited {
		t.Errorf("compute mode %s", d.is())
	}
	for _, mode := range d.was() {
		if mode == gpu.ComputeDefault {
			t.Errorf("the GPU was open to everybody: its compute modes were %s", d.was())
		}
	}
	next := &world{t: t, dir: w.dir, control: newFakeControl(w.dir), clock: w.clock, ended: make(chan error, 1),
		devices: w.devices}
	next.has("a")
	next.run()
	next.awaitState("a", mps.Ready)
	next.uses(mps.Use{Reserved: true})
	next.pass(func() bool { s := next.status("a"); return s.Use != nil && !s.Use.Claimed }, "the claim is gone")
	next.end()
	if d.is() != gpu.ComputeDefault {
		t.Errorf("compute mode %s: what the first supervisor found was not put back", d.is())
	}
}

// What a supervisor that was killed has left is put back where nothing uses MPS any more.
func TestLeftByOneThatWasKilled(t *testing.T) {
	w, d := guarded(t, gpu.ComputeProhibited)
	w.uses(mps.Use{})
	if err := w.dir.KeepFoundMode("a", gpu.ComputeDefault); err != nil {
		t.Fatal(err)
	}
	w.unneeded()
	w.run()
	w.awaitMode(d, gpu.ComputeDefault)
	w.pass(func() bool { _, known, _ := w.dir.FoundMode("a"); return !known }, "it is forgotten")
}

// A supervisor that was killed between the two steps has changed nothing.
func TestKilledBeforeTheModeWasSet(t *testing.T) {
	w, d := guarded(t, gpu.ComputeDefault)
	if err := w.dir.KeepFoundMode("a", gpu.ComputeDefault); err != nil {
		t.Fatal(err)
	}
	w.run()
	w.awaitState("a", mps.Ready)
	w.awaitMode(d, gpu.ComputeExclusiveProcess)
	w.end()
	if d.is() != gpu.ComputeDefault {
		t.Errorf("compute mode %s", d.is())
	}
}

func TestStrangersKeepTheCard(t *testing.T) {
	w, d := guarded(t, gpu.ComputeDefault)
	d.pids = []int{4712, 4711}
	w.run()
	w.awaitState("a", mps.Down)
	if reason := w.status("a").Reason; !strings.Contains(reason, "process 4711 4712") {
		t.Errorf("reason %q", reason)
	}
	if len(d.was()) > 0 || len(w.control.started("a")) > 0 {
		t.Errorf("compute modes were set: %s, daemons started: %d", d.was(), len(w.control.started("a")))
	}
	d.set(func(d *fakeDevice) { d.pids = nil })
	w.pass(func() bool { return w.status("a").State == mps.Ready }, "it is ready")
	// It was looked at all the time, and not more and more seldom.
	if longest := w.clock.of(4*time.Second, 8*time.Second); len(longest) > 0 {
		t.Errorf("waited for %s", longest)
	}
}

// A program that comes in at the last moment is not shut in.
func TestStrangerAtTheLastMoment(t *testing.T) {
	w, d := guarded(t, gpu.ComputeDefault)
	d.onSet = func(d *fakeDevice, mode gpu.ComputeMode) {
		if mode == gpu.ComputeProhibited {
			d.pids = []int{4711}
		}
	}
	w.run()
	w.awaitState("a", mps.Down)
	w.awaitMode(d, gpu.ComputeDefault)
	if _, known, err := w.dir.FoundMode("a"); known || err != nil {
		t.Errorf("there is something to put back (%v)", err)
	}
}

func TestSomebodyElseHasProhibitedTheCard(t *testing.T) {
	w, d := guarded(t, gpu.ComputeProhibited)
	w.run()
	w.awaitState("a", mps.Down)
	if reason := w.status("a").Reason; !strings.Contains(reason, "--compute-mode=DEFAULT") {
		t.Errorf("reason %q", reason)
	}
	w.end()
	if len(d.was()) > 0 {
		t.Errorf("compute modes were set: %s", d.was())
	}
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
	if reason := w.status("a").Reason; !strings.Contains(reason, "MPS server") || !strings.Contains(reason, "4711") {
		t.Errorf("reason %q", reason)
	}
	if mode := d.is(); mode != gpu.ComputeProhibited {
		t.Errorf("compute mode %s", mode)
	}
	// As long as it is there nothing is tried, and then at once.
	w.control.set(func(c *fakeControl) { c.stillborn = false })
	w.pass(func() bool { return strings.HasPrefix(w.status("a").Reason, errForeign.Error()) }, "it is waited for")
	d.set(func(d *fakeDevice) { d.pids, d.onSet = nil, nil })
	w.pass(func() bool { return w.status("a").State == mps.Ready }, "it is ready")
	if long := w.clock.of(4*time.Second, 8*time.Second); len(long) > 0 {
		t.Errorf("waited for %s", long)
	}
}

// The driver forgets the mode when it is loaded anew, and root can set it.
func TestModeThatSomebodySetsIsSetAgain(t *testing.T) {
	w, d := guarded(t, gpu.ComputeDefault)
	w.run()
	w.awaitState("a", mps.Ready)
	d.set(func(d *fakeDevice) { d.mode = gpu.ComputeDefault })
	w.awaitMode(d, gpu.ComputeExclusiveProcess)
	if starts := len(w.control.started("a")); starts != 1 || w.status("a").State != mps.Ready {
		t.Errorf("%d starts, status %+v", starts, w.status("a"))
	}
}

func TestCardWithoutComputeModes(t *testing.T) {
	w := newWorld(t, "a")
	w.uses(mps.Use{Reserved: true})
	w.run()
	w.awaitState("a", mps.Ready)
	if s := w.status("a"); s.DriverEnforced || w.control.server("a") != 0 {
		t.Errorf("status %+v, server %d", s, w.control.server("a"))
	}
}

// A card that is lost keeps what it has until it can be asked.
func TestCardThatCannotBeAsked(t *testing.T) {
	w, d := guarded(t, gpu.ComputeDefault)
	d.err = errors.New("GPU is lost")
	w.run()
	w.awaitState("a", mps.Down)
	if reason := w.status("a").Reason; !strings.Contains(reason, "GPU is lost") {
		t.Errorf("reason %q", reason)
	}
	d.set(func(d *fakeDevice) { d.err = nil })
	w.pass(func() bool { return w.status("a").State == mps.Ready }, "it is ready")
}

// Where the card is offered in several modes, it is MPS' from the first claim to the last.
func TestCardIsMPSAsLongAsItHasClaims(t *testing.T) {
	w, d := guarded(t, gpu.ComputeDefault)
	w.uses(mps.Use{})
	w.run()
	w.awaitState("a", mps.Ready)
	if d.is() != gpu.ComputeDefault || w.control.server("a") != 0 {
		t.Errorf("compute mode %s, server %d before the first claim", d.is(), w.control.server("a"))
	}
	daemon := w.latest("a")
	for range 2 {
		w.admit(1024, 100)
		if d.is() != gpu.ComputeExclusiveProcess || w.control.server("a") == 0 {
			t.Errorf("compute mode %s, server %d when a claim was prepared", d.is(), w.control.server("a"))
		}
		w.uses(mps.Use{})
		w.awaitMode(d, gpu.ComputeDefault)
	}
	if w.latest("a") != daemon || w.status("a").State != mps.Ready {
		t.Errorf("status %+v", w.status("a"))
	}
}

// admit prepares a claim while the clock goes on.
func (w *world) admit(mib, percent int64) {
	w.t.Helper()
	admitted := make(chan error, 1)
	go func() { admitted <- w.dir.Admit("a", mps.Limits{MemoryMiB: mib, ThreadPercent: percent}) }()
	w.pass(func() bool { return len(admitted) > 0 }, "the claim is admitted")
	if err := <-admitted; err != nil {
		w.t.Error(err)
	}
}

// limits are what the server and the daemon were told last, of each.
func (c *fakeControl) limits() map[string]string {
	c.mu.Lock()
	defer c.mu.Unlock()
	out := map[string]string{}
	for _, commands := range c.commands {
		for line := range strings.Lines(commands) {
			words := strings.Fields(line)
			if strings.HasPrefix(words[0], "set_") {
				out[words[0]] = strings.Join(words[1:], " ")
			}
		}
	}
	return out
}

func TestNobodyGetsMoreThanTheLargestShare(t *testing.T) {
	w, _ := guarded(t, gpu.ComputeDefault)
	w.run()
	w.awaitState("a", mps.Ready)
	holds := func(mib, percent int64) {
		t.Helper()
		want := map[string]string{
			"set_default_device_pinned_mem_limit":  fmt.Sprintf("0 %dM", mib),
			"set_default_active_thread_percentage": fmt.Sprint(percent),
			// Those that come are clients of this server.
			"set_device_pinned_mem_limit":  fmt.Sprintf("101 0 %dM", mib),
			"set_active_thread_percentage": fmt.Sprintf("101 %d", percent),
		}
		w.pass(func() bool { return fmt.Sprint(w.control.limits()) == fmt.Sprint(want) }, fmt.Sprintf("%v hold", want))
	}
	w.admit(1024, 25)
	holds(1024, 25)
	// Raised before the claim is prepared.
	w.admit(2048, 25)
	if got := w.control.limits()["set_device_pinned_mem_limit"]; got != "101 0 2048M" {
		t.Errorf("a claim of 2048 MiB was prepared while %s held", got)
	}
	commands := len(w.control.commandsNow())
	w.admit(1024, 5)
	if more := len(w.control.commandsNow()) - commands; more > 0 {
		t.Errorf("the daemon was told %d things for a claim that is not the largest", more)
	}
	// Lowered after it has gone.
	w.uses(mps.Use{Reserved: true, Claimed: true, Limits: mps.Limits{MemoryMiB: 1024, ThreadPercent: 5}})
	holds(1024, 5)
	// A client may have changed them.
	w.control.set(func(c *fakeControl) { c.commands = nil })
	holds(1024, 5)
	// The next server's are the same.
	w.control.set(func(c *fakeControl) { c.commands, c.lastPID = nil, 100 })
	w.control.endServer("a")
	holds(1024, 5)
}

func (c *fakeControl) commandsNow() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(c.commands), func(command string) bool { return command == commandProbe })
}
