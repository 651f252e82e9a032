// SPDX-License-Identifier: Apache-2.0

package supervisor

import (
	"context"
	"testing"
	"time"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/mps"
)

// plugin is one that declares what the node needs.
type plugin struct {
	w        *world
	withdraw []func() error
}

// plugin starts one that declares this; nothing yet if it is Undeclared.
func (w *world) plugin(declaration mps.Declaration) *plugin {
	w.t.Helper()
	p := &plugin{w: w}
	// Otherwise the garbage collector closes the files, whose locks are the declaration.
	w.t.Cleanup(p.kill)
	if declaration != mps.Undeclared {
		p.declare(declaration)
	}
	return p
}

// declare declares this in the place of what it declared before.
func (p *plugin) declare(declaration mps.Declaration) {
	p.w.t.Helper()
	p.add(declaration)
	before := len(p.withdraw) - 1
	p.drop(before)
}

// add declares this beside what it declared before.
func (p *plugin) add(declaration mps.Declaration) {
	p.w.t.Helper()
	withdraw, err := p.w.dir.Declare(declaration)
	expect.NoError(p.w.t, err)
	if withdraw == nil {
		withdraw = func() error { return nil }
	}
	p.withdraw = append(p.withdraw, withdraw)
}

// drop withdraws the first n of what it declared.
func (p *plugin) drop(n int) {
	p.w.t.Helper()
	for _, withdraw := range p.withdraw[:n] {
		expect.NoError(p.w.t, withdraw())
	}
	p.withdraw = p.withdraw[n:]
}

// kill ends it: the kernel lets go of its locks.
func (p *plugin) kill() {
	p.w.t.Helper()
	p.drop(len(p.withdraw))
}

// looks is for while no daemon runs: it returns when the supervisor has looked after do.
func (w *world) looks(do func()) {
	w.t.Helper()
	before := len(w.clock.of(lookInterval, idleInterval))
	do()
	w.eventually(func() bool { return len(w.clock.of(lookInterval, idleInterval)) > before }, "the supervisor looks")
}

// elapse lets that time pass while no daemon runs, with a look whenever there is one.
func (w *world) elapse(d time.Duration) {
	w.t.Helper()
	for end := w.clock.Now().Add(d); w.clock.Now().Before(end); {
		waits := w.clock.of(lookInterval, idleInterval)
		w.looks(func() { w.clock.Step(waits[len(waits)-1]) })
	}
}

// looksFor lets that time pass, in steps in which the supervisor looks where it does.
func (w *world) looksFor(d time.Duration) {
	w.t.Helper()
	for end := w.clock.Now().Add(d); w.clock.Now().Before(end); w.clock.Step(lookInterval) {
		w.eventually(w.clock.HasWaiters, "the supervisor waits")
	}
}

// runs lets that time pass while a daemon runs, and checks that it does.
func (w *world) runs(d time.Duration) {
	w.t.Helper()
	end := w.clock.Now().Add(d)
	w.pass(func() bool { return w.clock.Now().After(end) }, "the time passes")
	expect.NoError(w.t, w.dir.Check("a"))
}

// starts checks how many daemons of the first GPU were started in all.
func (w *world) starts(want int) {
	w.t.Helper()
	expect.Equal(w.t, want, len(w.control.started("a")), "daemons were started")
}

func TestDaemonsRunWhereTheyAreNeeded(t *testing.T) {
	w := newWorld(t, "a", "b")
	w.ready("a", "b")
	plugin := w.plugin(mps.Idle)
	w.pass(func() bool { return w.status("a").Reason == nodeIdle && w.status("b").Reason == nodeIdle },
		"the daemons have ended")
	w.checkSays("a", "nothing on the node uses MPS")
	if d := w.latest("a"); d.killed {
		t.Error("a daemon was killed that would have quit")
	}
	// Nothing is done there: neither asked nor read.
	w.control.set(func(c *fakeControl) { c.commands = nil })
	reads := w.timesRead()
	w.looksFor(3 * rereadInterval)
	again := w.timesRead() - reads
	if w.control.asked(commandProbe) || again > 0 {
		t.Errorf("daemons were asked, or the GPUs were read %d times, for nobody", again)
	}
	plugin.declare(mps.InUse)
	w.pass(func() bool { return w.dir.Check("a") == nil && w.dir.Check("b") == nil }, "the daemons serve again")
	w.starts(2)
}

// Where nothing uses MPS it is not looked each moment whether something does: that is told.
func TestNeedIsTold(t *testing.T) {
	w := newWorld(t, "a")
	plugin := w.plugin(mps.Idle)
	w.run()
	w.eventually(w.clock.HasWaiters, "the supervisor waits")
	if often := w.clock.of(lookInterval); len(often) > 0 {
		t.Errorf("it looks every %s where nothing uses MPS", lookInterval)
	}
	w.elapse(2 * idleInterval)
	w.starts(0)
	plugin.declare(mps.InUse)
	w.eventually(func() bool { return len(w.control.started("a")) == 1 }, "the daemon is started at once")
}

// The plugin restarts where nothing uses MPS, which starts no daemon.
func TestPluginRestartsOnAnIdleNode(t *testing.T) {
	w := newWorld(t, "a")
	plugin := w.plugin(mps.Idle)
	w.looks(w.run)
	for range 3 {
		w.looks(plugin.kill)
		w.elapse(restartGrace / 2)
		plugin = w.plugin(mps.Idle)
		w.elapse(2 * restartGrace)
	}
	w.starts(0)
}

// The plugin uses MPS after its restart, as with other settings: the grace time does not delay its daemon.
func TestPluginRestartsAndUsesMPS(t *testing.T) {
	w := newWorld(t, "a")
	plugin := w.plugin(mps.Idle)
	w.looks(w.run)
	w.looks(plugin.kill)
	w.elapse(restartGrace / 2)
	w.starts(0)
	w.plugin(mps.InUse)
	w.clock.Step(lookInterval)
	w.awaitState("a", mps.Ready)
}

// After the grace time daemons run: a plugin of an earlier version may be there, which declares nothing where it
// uses MPS.
func TestPluginThatDoesNotComeBack(t *testing.T) {
	w := newWorld(t, "a")
	plugin := w.plugin(mps.Idle)
	w.looks(w.run)
	w.looks(plugin.kill)
	w.elapse(restartGrace - lookInterval)
	w.starts(0)
	w.clock.Step(lookInterval)
	w.awaitState("a", mps.Ready)
	// The end of that plugin does not end them.
	w.runs(2 * restartGrace)
	w.starts(1)
}

// The plugin is killed at each point between deciding that MPS is needed and the daemon's start. The next one has
// its daemon in any case.
func TestPluginIsKilledOnItsWayToMPS(t *testing.T) {
	for name, test := range map[string]struct {
		// until is what the plugin has done when it is killed.
		until func(p *plugin)
		// runs says that the daemon is there before the successor is.
		runs bool
	}{
		"decided, and not declared": {until: func(*plugin) {}},
		"declared in use":           {until: func(p *plugin) { p.add(mps.InUse) }},
		"declared, and looked at": {until: func(p *plugin) {
			p.add(mps.InUse)
			p.w.clock.Step(idleInterval)
			p.w.awaitState("a", mps.Ready)
		}, runs: true},
		"the daemon is starting": {until: func(p *plugin) {
			p.w.control.set(func(c *fakeControl) { c.askErr = context.DeadlineExceeded })
			p.add(mps.InUse)
			p.drop(1)
			p.w.awaitState("a", mps.Starting)
		}, runs: true},
		"the daemon runs": {until: func(p *plugin) {
			p.add(mps.InUse)
			p.drop(1)
			p.w.awaitState("a", mps.Ready)
		}, runs: true},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, "a")
			p := w.plugin(mps.Idle)
			w.looks(w.run)
			test.until(p)
			p.kill()
			w.control.set(func(c *fakeControl) { c.askErr = nil })
			if test.runs {
				w.pass(func() bool { return w.dir.Check("a") == nil }, "the daemon serves without a plugin")
			}
			w.plugin(mps.InUse)
			w.pass(func() bool { return w.dir.Check("a") == nil }, "the daemon serves")
			w.runs(2 * restartGrace)
			w.starts(1)
		})
	}
}

// Clients outlive the plugin: while MPS was in use, its end changes nothing.
func TestPluginEndsWhileMPSIsInUse(t *testing.T) {
	w := newWorld(t, "a")
	plugin := w.plugin(mps.Idle)
	w.looks(w.run)
	plugin.declare(mps.InUse)
	w.awaitState("a", mps.Ready)
	plugin.kill()
	w.runs(2 * restartGrace)
	w.starts(1)
}

// A supervisor uses the plugins that run, not those that ended before it was started.
func TestSupervisorRestartsAlone(t *testing.T) {
	for name, test := range map[string]struct {
		declaration mps.Declaration
		runs        bool
	}{
		"a plugin has declared the node idle": {mps.Idle, false},
		"a plugin has declared it in use":     {mps.InUse, true},
		"no plugin is there":                  {mps.Undeclared, true},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, "a")
			plugin := w.plugin(mps.Idle)
			w.looks(w.run)
			if test.declaration != mps.Idle {
				plugin.kill()
				w.plugin(test.declaration)
			}
			w.stop()
			w.pass(func() bool { return len(w.ended) > 0 }, "the supervisor ends")
			expect.NoError(t, <-w.ended)
			before := len(w.control.started("a"))
			if test.runs {
				w.run()
				w.eventually(func() bool { return len(w.control.started("a")) == before+1 }, "the daemon is started at once")
			} else {
				w.looks(w.run)
				w.elapse(2 * restartGrace)
				w.starts(before)
			}
		})
	}
}

// During an update two instances run, and only one of them knows that MPS is in use.
func TestInUseCountsMoreThanIdle(t *testing.T) {
	w := newWorld(t, "a")
	w.plugin(mps.Idle)
	next := w.plugin(mps.InUse)
	w.ready("a")
	next.declare(mps.Idle)
	w.pass(func() bool { return w.status("a").Reason == nodeIdle }, "the daemon ends")
}
