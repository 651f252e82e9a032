// SPDX-License-Identifier: Apache-2.0

package mps

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

const testGPU = "GPU-0"

// hold makes the test the directory's supervisor.
func hold(t *testing.T, d Dir) (release func() error) {
	t.Helper()
	release, err := d.Hold()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = release() })
	return release
}

func set(t *testing.T, d Dir, s Status) {
	t.Helper()
	if err := d.SetStatus(testGPU, s); err != nil {
		t.Fatal(err)
	}
}

// ready says that the daemon serves at a socket, for which a pipe stands in.
func ready(t *testing.T, d Dir) (path string) {
	t.Helper()
	path = filepath.Join(d.PipeDir(testGPU), SocketName)
	if err := errors.Join(os.MkdirAll(d.PipeDir(testGPU), 0o755), unix.Mkfifo(path, 0o600)); err != nil {
		t.Fatal(err)
	}
	socket, err := SocketAt(path)
	if err != nil {
		t.Fatal(err)
	}
	set(t, d, Status{State: Ready, Socket: &socket})
	return path
}

func TestCheck(t *testing.T) {
	since := time.Date(2026, 11, 21, 10, 0, 0, 0, time.UTC)
	tests := map[string]struct {
		prepare func(t *testing.T, d Dir)
		want    string // in the error; empty for none
	}{
		"nothing was ever there": {
			prepare: func(*testing.T, Dir) {},
			want:    "gpu-mps-supervisor does not run",
		},
		"the daemon is ready": {
			prepare: func(t *testing.T, d Dir) { hold(t, d); set(t, d, Status{State: Ready, Since: since}) },
		},
		"the daemon is ready at its socket": {
			prepare: func(t *testing.T, d Dir) { hold(t, d); ready(t, d) },
		},
		"the daemon's socket is removed": {
			prepare: func(t *testing.T, d Dir) {
				hold(t, d)
				if err := os.Remove(ready(t, d)); err != nil {
					t.Fatal(err)
				}
			},
			want: "removed or changed",
		},
		"the daemon's socket is another": {
			prepare: func(t *testing.T, d Dir) {
				hold(t, d)
				path := ready(t, d)
				// Kept, by which the other has another number.
				if err := errors.Join(os.Rename(path, path+".kept"), unix.Mkfifo(path, 0o600)); err != nil {
					t.Fatal(err)
				}
			},
			want: "removed or changed",
		},
		"not everybody may connect to the daemon's socket": {
			prepare: func(t *testing.T, d Dir) {
				hold(t, d)
				if err := os.Chmod(ready(t, d), 0o400); err != nil {
					t.Fatal(err)
				}
			},
			want: "removed or changed",
		},
		"the supervisor was killed": {
			prepare: func(t *testing.T, d Dir) {
				release := hold(t, d)
				set(t, d, Status{State: Ready, Since: since})
				if err := release(); err != nil {
					t.Fatal(err)
				}
			},
			want: "gpu-mps-supervisor does not run",
		},
		"the daemon is down": {
			prepare: func(t *testing.T, d Dir) {
				hold(t, d)
				set(t, d, Status{State: Down, Reason: "signal: killed", Since: since})
			},
			want: "Down: signal: killed",
		},
		"the daemon starts": {
			prepare: func(t *testing.T, d Dir) {
				hold(t, d)
				set(t, d, Status{State: Starting, Reason: "first start", Since: since})
			},
			want: "Starting",
		},
		"the GPU has no daemon": {
			prepare: func(t *testing.T, d Dir) { hold(t, d) },
			want:    "serves no MPS control daemon for this GPU",
		},
		"the status is forgotten": {
			prepare: func(t *testing.T, d Dir) {
				hold(t, d)
				set(t, d, Status{State: Ready, Since: since})
				if err := d.Forget(testGPU); err != nil {
					t.Fatal(err)
				}
			},
			want: "serves no MPS control daemon for this GPU",
		},
		"the status is damaged": {
			prepare: func(t *testing.T, d Dir) {
				hold(t, d)
				set(t, d, Status{State: Ready, Since: since})
				if err := os.WriteFile(d.statusFile(testGPU), []byte(`{"state":"Rea`), 0o644); err != nil {
					t.Fatal(err)
				}
			},
			want: "status.json",
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			d := Dir(filepath.Join(t.TempDir(), "mps"))
			tc.prepare(t, d)
			err := d.Check(testGPU)
			switch {
			case tc.want == "" && err != nil:
				t.Errorf("unexpected error: %v", err)
			case tc.want != "" && (err == nil || !strings.Contains(err.Error(), tc.want)):
				t.Errorf("error %v, want %q in it", err, tc.want)
			}
		})
	}
}

func TestHoldIsForOne(t *testing.T) {
	d := Dir(t.TempDir())
	release := hold(t, d)
	if _, err := d.Hold(); err == nil || !strings.Contains(err.Error(), "another gpu-mps-supervisor runs") {
		t.Errorf("a second supervisor: error %v", err)
	}
	if err := release(); err != nil {
		t.Fatal(err)
	}
	hold(t, d)
}

// What a supervisor said before it was killed is not taken for the word of the
// next one, not even while that one starts. The pipe directories stay.
func TestHoldForgets(t *testing.T) {
	d := Dir(t.TempDir())
	if err := os.MkdirAll(d.PipeDir(testGPU), 0o755); err != nil {
		t.Fatal(err)
	}
	before, err := os.Stat(d.PipeDir(testGPU))
	if err != nil {
		t.Fatal(err)
	}
	release := hold(t, d)
	for range 100 {
		set(t, d, Status{State: Ready})
		if err := release(); err != nil {
			t.Fatal(err)
		}
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
