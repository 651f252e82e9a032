// SPDX-License-Identifier: Apache-2.0

package mps

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
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

func TestDaemonForAllGPUs(t *testing.T) {
	d := held(t)
	wanted := func(want bool) {
		t.Helper()
		for _, d := range []Dir{d, d.OfNode()} {
			if got, err := d.NodeDaemonWanted(); err != nil || got != want {
				t.Errorf("wanted: %t, %v, want %t", got, err, want)
			}
		}
	}
	wanted(false)
	expect.NoError(t, errors.Join(d.WantNodeDaemon(true), d.WantNodeDaemon(true)))
	wanted(true)
	expect.NoError(t, errors.Join(d.WantNodeDaemon(false), d.WantNodeDaemon(false)))
	wanted(false)

	node := d.OfNode()
	if d.Other() != node || node.Other() != d || node.OfNode() != node {
		t.Errorf("%s and %s are not each other's", d, node)
	}
	for what, of := range map[string]func(Dir, string) string{"pipe": Dir.PipeDir, "daemon": Dir.DaemonDir,
		"log": Dir.LogDir} {
		if of(node, "GPU-a") != of(node, "GPU-b") || of(d, "GPU-a") == of(d, "GPU-b") {
			t.Errorf("directory %s: %s and %s, and with a daemon for each %s and %s", what, of(node, "GPU-a"),
				of(node, "GPU-b"), of(d, "GPU-a"), of(d, "GPU-b"))
		}
	}
	// What is said of a GPU is not said of it by the other kind of daemon.
	set(t, node, Status{State: Ready})
	expect.NoError(t, node.Check(testGPU))
	expect.Error(t, d.Check(testGPU), "serves no MPS control daemon")
}

func TestStatusOfTheDaemonForAllGPUsIsForgotten(t *testing.T) {
	d := Dir(t.TempDir())
	set(t, d.OfNode(), Status{State: Ready})
	expect.Error(t, d.OfNode().Check(testGPU), "does not run on this node")
	hold(t, d)
	expect.Error(t, d.OfNode().Check(testGPU), "serves no MPS control daemon")
}

// Whichever daemon has the GPU, it is had back.
func TestGPUThatTheDaemonForAllHadIsGivenBack(t *testing.T) {
	d := held(t)
	node := d.OfNode()
	expect.NoError(t, errors.Join(node.SetUse(testGPU, Use{Reserved: true}),
		node.KeepFoundMode(testGPU, gpu.ComputeDefault)))
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	given := make(chan error, 1)
	go func() { given <- d.GiveBack(ctx, testGPU) }()
	for p := (pause{}); useOf(t, node).Guarded(); {
		expect.NoError(t, p.wait(ctx))
	}
	if len(given) > 0 {
		t.Fatalf("given back before the supervisor has: %v", <-given)
	}
	expect.NoError(t, node.ForgetFoundMode(testGPU))
	expect.NoError(t, <-given)
}
