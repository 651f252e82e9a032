// SPDX-License-Identifier: Apache-2.0

package supervisor

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/mps"
)

// Where the GPU is offered in several modes, it is MPS' from the first claim to the last.
func TestGPUIsMPSAsLongAsItHasClaims(t *testing.T) {
	w, d := guarded(t, gpu.ComputeDefault)
	w.uses(mps.Use{})
	w.ready("a")
	if d.is() != gpu.ComputeDefault || w.control.server("a") != 0 {
		t.Errorf("compute mode %s, server %d before the first claim", d.is(), w.control.server("a"))
	}
	daemon := w.latest("a")
	for range 2 {
		w.admit(1024, 100)
		w.servesAlone(d)
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
	go func() {
		admitted <- w.dir.Admit(w.t.Context(), "a", mps.Limits{MemoryMiB: mib, ThreadPercent: percent})
	}()
	w.pass(func() bool { return len(admitted) > 0 }, "the claim is admitted")
	expect.NoError(w.t, <-admitted)
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
	w.ready("a")
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
	expect.Equal(t, "101 0 2048M", w.control.limits()["set_device_pinned_mem_limit"],
		"a claim of 2048 MiB was prepared while held")
	largest := w.control.limits()
	w.admit(1024, 5)
	expect.Equal(t, largest, w.control.limits(), "limits after a claim that is not the largest")
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

// A program that waits for the daemon, and has unset its limits, is the first client.
func TestLimitsAreSetBeforeTheFirstClient(t *testing.T) {
	limits := mps.Limits{MemoryMiB: 1024, ThreadPercent: 25}
	for name, settable := range map[string]bool{"the supervisor starts the server": true, "the client does": false} {
		t.Run(name, func(t *testing.T) {
			w, d := guarded(t, gpu.ComputeDefault)
			d.settable = settable
			w.uses(mps.Use{Reserved: true}.With(limits))
			var first string // of what the daemon is told
			w.control.onStart = func(string) { first = "" }
			w.control.onAsk = func(command string) {
				if _, err := mps.SocketAt(w.control.socket("a")); first == "" && (command != commandProbe || err == nil) {
					first = fmt.Sprintf("%s, while clients find it: %t", command, err == nil)
				}
			}
			w.run()
			for starts := range 2 {
				w.pass(func() bool { s := w.status("a"); return s.State == mps.Ready && s.Restarts == starts }, "it serves")
				w.control.set(func(*fakeControl) {
					expect.Equal(t, limitCommands([]mps.Limits{limits}, nil)+", while clients find it: false", first,
						"daemon %d is told first", starts)
				})
				expect.Equal(t, limits, w.status("a").InForce, "in force")
				w.latest("a").end("crashed", false)
			}
		})
	}
}

// Somebody empties /run. What runs goes on, and nothing new starts.
func TestUseThatIsRemoved(t *testing.T) {
	w, d := guarded(t, gpu.ComputeDefault)
	w.ready("a")
	g := filepath.Dir(w.dir.PipeDir("a"))
	expect.NoError(t, errors.Join(os.Remove(filepath.Join(g, mps.UseFile)), w.dir.ForgetFoundMode("a")))
	w.pass(func() bool { return w.status("a").State == mps.Down }, "it is told of")
	w.checkSays("a", "was removed")
	w.servesAlone(d)
	w.uses(mps.Use{Reserved: true})
	w.pass(func() bool { return w.status("a").State == mps.Ready }, "it serves again")
	w.starts(1)
	w.end()
	expect.Equal(t, gpu.ComputeDefault, d.is(), "compute mode")
}

// A plugin of an earlier version says nothing, and after a reboot containers may start before
// this one does. Then the daemon starts the server for its first client.
func TestServerThatClientsHadStarted(t *testing.T) {
	started := func(t *testing.T, pids ...int) (w *world, d *fakeDevice, server int) {
		w, d = guarded(t, gpu.ComputeDefault)
		w.uses(mps.Use{})
		w.ready("a")
		server = w.control.startByClient("a", "4711")
		d.set(func(d *fakeDevice) { d.pids = append(pids, server, 4711) })
		w.uses(mps.Use{Reserved: true})
		return w, d, server
	}
	t.Run("it is kept", func(t *testing.T) {
		w, d, server := started(t)
		w.awaitMode(d, gpu.ComputeExclusiveProcess)
		w.pass(func() bool { s := w.status("a"); return s.State == mps.Ready && s.Use != nil && s.Use.Reserved },
			"it serves")
		if w.control.server("a") != server || w.control.asked(commandStartServer) || len(w.control.started("a")) != 1 {
			t.Errorf("server %d, started by the client: %d; commands %q", w.control.server("a"), server,
				w.control.commandsNow())
		}
		// Its limits are set, and its end is told.
		w.admit(1024, 25)
		want := fmt.Sprintf("%d 0 1024M", server)
		w.pass(func() bool { return w.control.limits()["set_device_pinned_mem_limit"] == want }, "its limit is "+want)
		w.control.endServer("a")
		w.awaitState("a", mps.Down)
	})
	t.Run("a program beside it is waited for", func(t *testing.T) {
		w, d, server := started(t, 4712)
		w.pass(func() bool { return w.status("a").State == mps.Down }, "it is told of")
		expect.Says(t, w.status("a").Reason, "process 4712:")
		d.set(func(d *fakeDevice) { d.pids = []int{server, 4711} })
		w.pass(func() bool { return w.status("a").State == mps.Ready }, "it serves")
		expect.Equal(t, server, w.control.server("a"), "the client's server has ended")
	})
}

// The plugin may have lost its records, and containers are there still.
func TestClientsThatNobodySaysToBeThere(t *testing.T) {
	begin := func(t *testing.T) (*world, *fakeDevice) {
		w, d := guarded(t, gpu.ComputeDefault)
		w.ready("a")
		w.control.set(func(c *fakeControl) { c.clients = "4712\n4711\n" })
		w.uses(mps.Use{})
		w.pass(func() bool { return w.status("a").Reason != "" }, "it is told of")
		if s := w.status("a"); s.State != mps.Ready || !strings.Contains(s.Reason, "process 4711 4712 does") {
			t.Errorf("status %+v", s)
		}
		w.servesAlone(d)
		return w, d
	}
	ended := func(w *world, d *fakeDevice) {
		w.awaitMode(d, gpu.ComputeDefault)
		w.pass(func() bool { s := w.status("a"); return s.State == mps.Ready && s.Reason == "" }, "nothing is waited for")
		if w.control.server("a") != 0 || len(w.control.started("a")) != 1 {
			t.Errorf("server %d, %d starts", w.control.server("a"), len(w.control.started("a")))
		}
	}
	t.Run("they end", func(t *testing.T) {
		w, d := begin(t)
		w.control.set(func(c *fakeControl) { c.clients = "" })
		ended(w, d)
	})
	t.Run("the plugin says it again", func(t *testing.T) {
		w, d := begin(t)
		server := w.control.server("a")
		w.uses(mps.Use{Reserved: true})
		w.pass(func() bool { return w.status("a").Reason == "" }, "nothing is waited for")
		w.looksFor(2 * clientsLimit)
		if d.is() != gpu.ComputeExclusiveProcess || w.control.server("a") != server {
			t.Errorf("compute mode %s, server %d", d.is(), w.control.server("a"))
		}
	})
	t.Run("they never end", func(t *testing.T) {
		w, d := guarded(t, gpu.ComputeDefault)
		w.ready("a")
		w.control.set(func(c *fakeControl) { c.clients = "4711\n" })
		since := w.clock.Now()
		w.uses(mps.Use{})
		ended(w, d)
		if after := w.clock.Since(since); after < clientsLimit {
			t.Errorf("the server was ended after %s", after)
		}
	})
}

// A supervisor was killed, and with it the GPU's daemon and server. Until the next one runs
// the first program gets the GPU, which is EXCLUSIVE_PROCESS: all of it. The next one lets it
// have that until it ends, and nobody else in.
func TestProgramThatHadTheGPUBetweenTwoSupervisors(t *testing.T) {
	w, d := guarded(t, gpu.ComputeExclusiveProcess)
	w.uses(claimed)
	expect.NoError(t, w.dir.KeepFoundMode("a", gpu.ComputeDefault))
	const beside = 4711
	d.pids = []int{beside}
	// The server asks for the only context, and does not get it.
	w.control.stillborn = true
	w.run()
	w.pass(func() bool {
		s := w.status("a")
		return s.State == mps.Down && strings.Contains(s.Reason, fmt.Sprintf("process %d", beside))
	}, "the program is named")
	w.awaitMode(d, gpu.ComputeProhibited)
	if err := w.dir.Check("a"); err == nil {
		t.Error("claims are prepared beside it")
	}
	w.control.set(func(c *fakeControl) { c.stillborn = false })
	d.set(func(d *fakeDevice) { d.pids = nil })
	w.pass(func() bool { return w.status("a").State == mps.Ready }, "the card is MPS' again")
	w.servesAlone(d)
	// What is put back in the end is what was there before either of them.
	w.uses(mps.Use{Reserved: true})
	w.end()
	w.awaitMode(d, gpu.ComputeDefault)
}

// Others come to hold a part of the GPU while the daemon starts for which it was taken: they have it as it was found.
func TestGPUOfOthersWhileTheDaemonStarts(t *testing.T) {
	w, d := guarded(t, gpu.ComputeDefault)
	limits := mps.Limits{MemoryMiB: 1024, ThreadPercent: 25}
	w.uses(mps.Use{Reserved: true}.With(limits))
	told := make(chan error, 1)
	var first sync.Once
	w.control.onStart = func(string) {
		first.Do(func() { told <- w.dir.SetUse("a", mps.Use{Beside: true}.With(limits)) })
	}
	w.run()
	w.pass(func() bool { return w.status("a").State == mps.Ready }, "MPS is beside them")
	expect.NoError(t, <-told)
	if _, known, err := w.dir.FoundMode("a"); known || err != nil || d.is() != gpu.ComputeDefault ||
		w.status("a").DriverEnforced {
		t.Errorf("compute mode %s, to be put back %t (%v), status %+v", d.is(), known, err, w.status("a"))
	}
	// When they have ended it is MPS' alone, as ever.
	w.uses(mps.Use{Reserved: true}.With(limits))
	w.awaitMode(d, gpu.ComputeExclusiveProcess)
	w.pass(func() bool { return w.status("a").DriverEnforced }, "nobody else comes")
	w.uses(mps.Use{})
	w.awaitMode(d, gpu.ComputeDefault)
}

// Pods of a device plugin hold a part of the GPU: their programs, and the next ones, run beside claims, which MPS
// holds to their shares. When they have ended the GPU is MPS' alone, with the clients that it has.
func TestClaimsBesidePodsOfADevicePlugin(t *testing.T) {
	w, d := guarded(t, gpu.ComputeDefault)
	const theirs, client = 4711, 4712
	d.pids = []int{theirs}
	w.run()
	w.pass(func() bool { return w.status("a").State == mps.Down }, "their program keeps MPS off")
	w.uses(mps.Use{Beside: true})
	w.pass(func() bool { return w.status("a").State == mps.Ready }, "MPS is beside it")
	for _, mib := range []int64{1024, 2048} {
		w.admit(mib, 25)
		if s := w.status("a"); d.is() != gpu.ComputeDefault || s.DriverEnforced || s.InForce.MemoryMiB != mib {
			t.Errorf("compute mode %s, status %+v", d.is(), s)
		}
	}
	expect.Equal(t, nil, d.was(), "compute modes that were set")
	// A client has had the daemon start a server.
	server := w.control.startByClient("a", fmt.Sprint(client))
	d.set(func(d *fakeDevice) { d.pids = []int{server, client} })
	w.uses(mps.Use{Reserved: true}.With(mps.Limits{MemoryMiB: 2048, ThreadPercent: 25}))
	w.awaitMode(d, gpu.ComputeExclusiveProcess)
	w.pass(func() bool { return w.status("a").DriverEnforced }, "nobody else comes")
	expect.Equal(t, server, w.control.server("a"), "the server is")
	// Claims that were there first keep the GPU.
	w.uses(mps.Use{Beside: true}.With(mps.Limits{MemoryMiB: 1024, ThreadPercent: 25}))
	w.pass(func() bool { s := w.status("a"); return s.Use != nil && s.Use.Beside }, "it knows of others again")
	if s := w.status("a"); d.is() != gpu.ComputeExclusiveProcess || !s.DriverEnforced || w.control.server("a") != server {
		t.Errorf("compute mode %s, server %d, status %+v", d.is(), w.control.server("a"), s)
	}
	w.control.set(func(c *fakeControl) { c.clients = "" })
	w.uses(mps.Use{Beside: true})
	w.awaitMode(d, gpu.ComputeDefault)
}
