// SPDX-License-Identifier: Apache-2.0

package mps

import (
	"errors"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
)

const testGPU = "GPU-0"

// hold makes the test the directory's supervisor.
func hold(t testing.TB, d Dir) (release func() error) {
	t.Helper()
	release, err := d.Hold()
	expect.NoError(t, err)
	t.Cleanup(func() { _ = release() })
	return release
}

func set(t *testing.T, d Dir, s Status) {
	t.Helper()
	expect.NoError(t, d.SetStatus(testGPU, s))
}

// ready says that the daemon serves at a socket, for which a pipe stands in.
func ready(t *testing.T, d Dir) (path string) {
	t.Helper()
	path = filepath.Join(d.PipeDir(testGPU), SocketName)
	expect.NoError(t, errors.Join(os.MkdirAll(d.PipeDir(testGPU), 0o755), unix.Mkfifo(path, 0o600)))
	socket, err := SocketAt(path)
	expect.NoError(t, err)
	set(t, d, Status{State: Ready, Socket: &socket})
	return path
}

func TestCheck(t *testing.T) {
	const changed, none = "removed or changed", "serves no MPS control daemon for this GPU"
	served := Status{State: Ready, Since: time.Date(2026, 11, 21, 10, 0, 0, 0, time.UTC)}
	another := func(path string) error {
		// The first pipe is kept, so that the second has another inode number.
		return errors.Join(os.Rename(path, path+".kept"), unix.Mkfifo(path, 0o600))
	}
	for name, tc := range map[string]struct {
		// status is what the supervisor has told of the daemon, if anything.
		status Status
		// socket, if any, is done to the socket at which the daemon is ready; then, if any, in the end.
		socket func(path string) error
		then   func(d Dir, release func() error) error
		want   string // in the error; empty for none
	}{
		"the daemon is ready":               {status: served},
		"the daemon is ready at its socket": {socket: func(string) error { return nil }},
		"the daemon's socket is removed":    {socket: os.Remove, want: changed},
		"the daemon's socket is another":    {socket: another, want: changed},
		"not everybody may connect to the daemon's socket": {
			socket: func(path string) error { return os.Chmod(path, 0o400) }, want: changed},
		"the supervisor was killed": {status: served, want: "gpu-mps-supervisor does not run",
			then: func(_ Dir, release func() error) error { return release() }},
		"the daemon is down":    {status: Status{State: Down, Reason: "signal: killed"}, want: "Down: signal: killed"},
		"the daemon starts":     {status: Status{State: Starting, Reason: "first start"}, want: "Starting"},
		"the GPU has no daemon": {want: none},
		"the status is forgotten": {status: served, want: none,
			then: func(d Dir, _ func() error) error { return d.Forget(testGPU) }},
		"the status is damaged": {status: served, want: "status.json", then: func(d Dir, _ func() error) error {
			return os.WriteFile(d.statusFile(testGPU), []byte(`{"state":"Rea`), 0o644)
		}},
	} {
		t.Run(name, func(t *testing.T) {
			d := Dir(filepath.Join(t.TempDir(), "mps"))
			release := hold(t, d)
			if tc.status.State != "" {
				set(t, d, tc.status)
			}
			if tc.socket != nil {
				expect.NoError(t, tc.socket(ready(t, d)))
			}
			if tc.then != nil {
				expect.NoError(t, tc.then(d, release))
			}
			expect.Error(t, d.Check(testGPU), tc.want)
		})
	}
	t.Run("nothing was ever there", func(t *testing.T) {
		expect.Error(t, Dir(filepath.Join(t.TempDir(), "mps")).Check(testGPU), "gpu-mps-supervisor does not run")
	})
}

func TestHoldIsForOne(t *testing.T) {
	d := Dir(t.TempDir())
	release := hold(t, d)
	_, err := d.Hold()
	expect.Error(t, err, "another gpu-mps-supervisor runs")
	expect.NoError(t, release())
	hold(t, d)
}

// What a supervisor said before it was killed is not taken for the word of the
// next one, not even while that one starts. The pipe directories stay.
func TestHoldForgets(t *testing.T) {
	d := Dir(t.TempDir())
	expect.NoError(t, os.MkdirAll(d.PipeDir(testGPU), 0o755))
	before, err := os.Stat(d.PipeDir(testGPU))
	expect.NoError(t, err)
	release := hold(t, d)
	for range 100 {
		set(t, d, Status{State: Ready})
		expect.NoError(t, release())
		started := make(chan struct{})
		var believed sync.WaitGroup
		believed.Go(func() {
			for {
				if d.Check(testGPU) == nil {
					t.Error("an earlier supervisor's word still holds")
					return
				}
				select {
				case <-started:
					return
				default:
				}
			}
		})
		release = hold(t, d)
		close(started)
		believed.Wait()
	}
	after, err := os.Stat(d.PipeDir(testGPU))
	if err != nil || !os.SameFile(before, after) {
		t.Errorf("containers that have the pipe directory mounted see another one: %v", err)
	}
}
