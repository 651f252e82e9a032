// SPDX-License-Identifier: Apache-2.0

package control

import (
	"errors"
	"fmt"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// onThread calls f on a thread that nothing else uses, neither before, as its
// mounts may be changed, nor after: the thread ends with f, and with the thread
// every process that f started (prctl(2), PR_SET_PDEATHSIG).
//
// It is not the process's first thread, which would not end with f, and whose
// mounts are those that others find in /proc as the process's.
func onThread(f func()) {
	go func() {
		// Never unlocked, by which the thread ends with the goroutine.
		runtime.LockOSThread()
		if unix.Gettid() != unix.Getpid() {
			f()
			return
		}
		defer runtime.UnlockOSThread()
		elsewhere := make(chan struct{})
		go func() {
			runtime.LockOSThread()
			close(elsewhere)
			f()
		}()
		<-elsewhere
	}()
}

// daemon is a control daemon, the first process of a process group of its own.
type daemon struct {
	pid    int
	logDir string
	output tail
	gone   chan struct{}
	done   chan struct{}
	err    error // set before done is closed
	// killed is closed when somebody wants all of it to end.
	killed   chan struct{}
	killOnce sync.Once

	mu    sync.Mutex
	ended bool
}

// serversLimit is how long a daemon's servers may outlive it, for those who have
// something to do before they end.
const serversLimit = time.Second

func newDaemon(logDir string) *daemon {
	return &daemon{logDir: logDir, gone: make(chan struct{}), done: make(chan struct{}), killed: make(chan struct{})}
}

func (d *daemon) PID() int { return d.pid }

func (d *daemon) Gone() <-chan struct{} { return d.gone }

func (d *daemon) Done() <-chan struct{} { return d.done }

func (d *daemon) Err() error { return d.err }

// Kill ends the daemon and its servers.
func (d *daemon) Kill() error {
	d.killOnce.Do(func() { close(d.killed) })
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.ended {
		return nil
	}
	return d.killGroup()
}

// killGroup must not be called when the daemon has been collected: its number
// could be another's then.
func (d *daemon) killGroup() error {
	if err := unix.Kill(-d.pid, unix.SIGKILL); err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("kill process group %d: %w", d.pid, err)
	}
	return nil
}

// wait waits for the daemon's end and takes the server it started with it: its
// clients have no one to speak to, and the next daemon starts its own.
func (d *daemon) wait(cmd *exec.Cmd) {
	err := awaitEnd(d.pid)
	close(d.gone)
	select {
	case <-d.killed:
	case <-time.After(serversLimit):
	}
	d.mu.Lock()
	err = errors.Join(err, d.killGroup())
	d.ended = true
	d.mu.Unlock()
	err = errors.Join(err, cmd.Wait())
	how := "exit status 0"
	if err != nil {
		how = err.Error()
	}
	d.err = fmt.Errorf("it has ended: %s%s; its logs are in %s", how, d.output.said(), d.logDir)
	close(d.done)
}

// awaitEnd waits until the child has ended, without collecting it.
func awaitEnd(pid int) error {
	for {
		err := unix.Waitid(unix.P_PID, pid, nil, unix.WEXITED|unix.WNOWAIT, nil)
		if err == nil {
			return nil
		}
		if !errors.Is(err, unix.EINTR) {
			return fmt.Errorf("wait for process %d: %w", pid, err)
		}
	}
}

// tailBytes is how much is kept of what a process says.
const tailBytes = 4 << 10

// tail keeps the end of what is written to it.
type tail struct {
	mu   sync.Mutex
	data []byte
}

// Write implements [io.Writer].
func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.data = append(t.data, p...)
	if excess := len(t.data) - tailBytes; excess > 0 {
		t.data = append(t.data[:0], t.data[excess:]...)
	}
	return len(p), nil
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return string(t.data)
}

// said is the last line, for the end of an error's text; empty if there is none.
func (t *tail) said() string {
	lines := strings.Split(strings.TrimSpace(t.String()), "\n")
	last := strings.TrimSpace(lines[len(lines)-1])
	if last == "" {
		return ""
	}
	return fmt.Sprintf(": it said %q", last)
}
