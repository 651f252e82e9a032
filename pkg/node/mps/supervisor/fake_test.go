// SPDX-License-Identifier: Apache-2.0

package supervisor

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/types"
	testingclock "k8s.io/utils/clock/testing"

	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/mps"
)

// fakeControl is a control program whose daemons do as a test says.
type fakeControl struct {
	mu       sync.Mutex
	startErr error // of the next starts
	askErr   error // of asking any daemon
	stubborn bool  // daemons do not quit
	undead   bool  // those that are started do not end when they are killed
	hang     bool  // asking them takes as long as the asker has patience
	dir      mps.Dir
	commands []string
	daemons  map[string][]*fakeDaemon
	onStart  func(uuid string)
	onAsk    func(command string)
	// clients are those of any server, as the daemon lists them.
	clients string
	// fault is that a client of theirs had one, and not all have ended.
	fault bool
	// stillborn servers end before they serve.
	stillborn bool
	lastPID   int
	servers   map[int]chan struct{} // their ends
}

func newFakeControl(dir mps.Dir) *fakeControl {
	return &fakeControl{dir: dir, daemons: map[string][]*fakeDaemon{}, lastPID: 100, servers: map[int]chan struct{}{}}
}

// socket is what clients connect to, which a pipe is good enough for.
func (c *fakeControl) socket(uuid string) string {
	return filepath.Join(c.dir.PipeDir(uuid), mps.SocketName)
}

func (c *fakeControl) set(change func(c *fakeControl)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	change(c)
}

func (c *fakeControl) Start(uuid string) (Daemon, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.startErr != nil {
		return nil, c.startErr
	}
	if c.onStart != nil {
		c.onStart(uuid)
	}
	if err := unix.Mkfifo(filepath.Join(c.dir.DaemonDir(uuid), mps.SocketName), 0o600); err != nil {
		return nil, err
	}
	d := &fakeDaemon{gone: make(chan struct{}), done: make(chan struct{}), undead: c.undead}
	c.daemons[uuid] = append(c.daemons[uuid], d)
	return d, nil
}

func (c *fakeControl) Ask(ctx context.Context, uuid, command string) (string, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.commands = append(c.commands, command)
	if lines := strings.Split(command, "\n"); len(lines) > 1 {
		c.commands = append(c.commands, lines...)
	}
	if c.onAsk != nil {
		c.onAsk(command)
	}
	if c.hang {
		c.mu.Unlock()
		<-ctx.Done()
		c.mu.Lock()
	}
	all := c.daemons[uuid]
	if c.askErr != nil {
		return "", c.askErr
	}
	if command == commandQuit && !c.stubborn {
		all[len(all)-1].end("quit", false)
	}
	var answers strings.Builder
	for line := range strings.SplitSeq(command, "\n") {
		if answer := c.answer(all[len(all)-1], line); answer != "" {
			fmt.Fprintln(&answers, strings.TrimSpace(answer))
		}
	}
	return answers.String(), nil
}

// answer does what a command says of the daemon's server.
func (c *fakeControl) answer(d *fakeDaemon, command string) string {
	switch words := strings.Fields(command); words[0] {
	case "start_server":
		if !c.stillborn {
			c.lastPID++
			d.server = c.lastPID
			c.servers[d.server] = make(chan struct{})
		}
	case "get_server_list":
		if d.server != 0 {
			return fmt.Sprintln(d.server)
		}
	case "get_client_list":
		return c.clients
	case "get_server_status":
		if c.fault {
			return "FAULT"
		}
		return "ACTIVE"
	case "shutdown_server":
		close(c.servers[d.server])
		d.server = 0
	}
	return ""
}

func (c *fakeControl) Watch(pid int) (<-chan struct{}, func(), error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.servers[pid], func() {}, nil
}

// server is that of the GPU's latest daemon; 0 if there is none.
func (c *fakeControl) server(uuid string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	if all := c.daemons[uuid]; len(all) > 0 {
		return all[len(all)-1].server
	}
	return 0
}

// startByClient is what the daemon does for its first client where it has no server.
func (c *fakeControl) startByClient(uuid, client string) (server int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	all := c.daemons[uuid]
	c.answer(all[len(all)-1], commandStartServer)
	c.clients = client + "\n"
	return c.lastPID
}

// endServer ends a server by itself.
func (c *fakeControl) endServer(uuid string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	all := c.daemons[uuid]
	close(c.servers[all[len(all)-1].server])
	all[len(all)-1].server = 0
}

func (c *fakeControl) asked(command string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Contains(c.commands, command)
}

func (c *fakeControl) started(uuid string) []*fakeDaemon {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.daemons[uuid]
}

type fakeDaemon struct {
	once   sync.Once
	left   sync.Once
	gone   chan struct{}
	done   chan struct{}
	err    error
	killed bool
	undead bool
	server int // 0 while there is none
}

func (d *fakeDaemon) end(how string, killed bool) {
	d.once.Do(func() {
		d.err, d.killed = errors.New(how), killed
		d.leave()
		close(d.done)
	})
}

// leave ends the daemon, but not what it has started.
func (d *fakeDaemon) leave() { d.left.Do(func() { close(d.gone) }) }

func (d *fakeDaemon) PID() int              { return 1 }
func (d *fakeDaemon) Gone() <-chan struct{} { return d.gone }
func (d *fakeDaemon) Done() <-chan struct{} { return d.done }
func (d *fakeDaemon) Err() error            { return d.err }
func (d *fakeDaemon) Kill() error {
	if !d.undead {
		d.end("killed", true)
	}
	return nil
}

// recordingClock is a fake clock that keeps what it was asked to wait for.
type recordingClock struct {
	*testingclock.FakeClock
	mu    sync.Mutex
	waits []time.Duration
}

func (c *recordingClock) After(d time.Duration) <-chan time.Time {
	// Whoever sees the wait can step over it.
	after := c.FakeClock.After(d)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.waits = append(c.waits, d)
	return after
}

// of are the waits that are one of these, in their order.
func (c *recordingClock) of(these ...time.Duration) []time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	var found []time.Duration
	for _, d := range c.waits {
		if slices.Contains(these, d) {
			found = append(found, d)
		}
	}
	return found
}

// world is a running supervisor on a fake clock.
type world struct {
	t       *testing.T
	dir     mps.Dir
	control *fakeControl
	node    *fakeControl // of the daemon for all GPUs
	clock   *recordingClock
	// silentFrom is when daemons no longer answered (silenced).
	silentFrom time.Time
	stop       context.CancelFunc
	ended      chan error
	kernelLog  string

	mu      sync.Mutex
	machine gpu.Machine
	readErr error
	reads   int
	devices map[string]*fakeDevice
}

func newWorld(t *testing.T, uuids ...string) *world {
	dir := mps.Dir(t.TempDir())
	w := &world{
		t: t, dir: dir, devices: map[string]*fakeDevice{}, control: newFakeControl(dir), ended: make(chan error, 1),
		node:  newFakeControl(dir.OfNode()),
		clock: &recordingClock{FakeClock: testingclock.NewFakeClock(time.Date(2026, 11, 21, 10, 0, 0, 0, time.UTC))},
	}
	w.has(uuids...)
	return w
}

func (w *world) has(uuids ...string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.machine.GPUs = nil
	for i, uuid := range uuids {
		w.machine.GPUs = append(w.machine.GPUs, gpu.GPU{Index: i, UUID: uuid})
	}
}

func (w *world) run() {
	ctx, stop := context.WithCancel(w.t.Context())
	w.stop = stop
	go func() {
		w.ended <- Run(ctx, Options{Dir: w.dir, Control: w.control, NodeControl: w.node, Clock: w.clock,
			Describe: func(pid int) mps.Client {
				return mps.Client{PID: pid, Program: fmt.Sprintf("p%d", pid), Pod: types.UID(fmt.Sprintf("pod-%d", pid))}
			},
			KernelLog: func() (string, error) { return w.kernelLog, nil },
			Device:    func(_ context.Context, uuid string) (Device, error) { return w.device(uuid), nil },
			Read: func(context.Context) (*gpu.Machine, error) {
				w.mu.Lock()
				defer w.mu.Unlock()
				w.reads++
				m := w.machine
				return &m, w.readErr
			}})
	}()
	w.t.Cleanup(func() {
		stop()
		w.pass(func() bool { return len(w.ended) > 0 }, "the supervisor ends")
	})
}

// ready runs the supervisor until the daemons of these GPUs serve.
func (w *world) ready(uuids ...string) {
	w.t.Helper()
	w.run()
	for _, uuid := range uuids {
		w.awaitState(uuid, mps.Ready)
	}
}

// result returns the error with which the supervisor ended.
func (w *world) result() error {
	w.t.Helper()
	w.pass(func() bool { return len(w.ended) > 0 }, "the supervisor ends")
	err := <-w.ended
	w.ended <- nil // for the cleanup
	return err
}

func (w *world) set(change func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	change()
}

// eventually waits, in real time, for what other goroutines do by themselves.
func (w *world) eventually(condition func() bool, what string) {
	w.t.Helper()
	for deadline := time.Now().Add(10 * time.Second); !condition(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			w.t.Fatalf("it did not come about that %s", what)
		}
	}
}

// pass lets the clock run until the condition holds.
func (w *world) pass(condition func() bool, what string) {
	w.t.Helper()
	w.eventually(func() bool {
		if condition() {
			return true
		}
		w.clock.Step(500 * time.Millisecond)
		return false
	}, what)
}

func (w *world) status(uuid string) mps.Status {
	s, err := w.dir.Status(uuid)
	if err != nil {
		return mps.Status{Reason: err.Error()}
	}
	return s
}

func (w *world) awaitState(uuid string, state mps.State) {
	w.t.Helper()
	w.eventually(func() bool { return w.status(uuid).State == state }, uuid+" is "+string(state))
}

func (w *world) latest(uuid string) *fakeDaemon {
	all := w.control.started(uuid)
	return all[len(all)-1]
}
