// SPDX-License-Identifier: Apache-2.0

package mps

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
)

// A daemon that is late, or is being started, is awaited for as long as the kubelet lets a container start; one that is
// down for a moment. Nobody waits for one that serves.
func TestAwait(t *testing.T) {
	for name, tc := range map[string]struct {
		state State
		// ready is when it serves, down when it is down instead; 0 for never.
		ready, down time.Duration
		want        time.Duration
		refused     string
	}{
		"it serves":                 {state: Ready},
		"late, and then it answers": {state: Late, ready: 20 * time.Second, want: 20 * time.Second},
		"late, killed, and started again": {state: Late, down: 65 * time.Second, ready: 67 * time.Second,
			want: 67 * time.Second},
		"late, and then down for good":      {state: Late, down: 40 * time.Second, refused: "Down", want: 50 * time.Second},
		"late for longer than it may be":    {state: Late, refused: "Late", want: LatePatience},
		"it is being started":               {state: Starting, ready: 30 * time.Second, want: 30 * time.Second},
		"killed, and served a second later": {state: Down, ready: time.Second, want: time.Second},
		"down for good":                     {state: Down, refused: "Down", want: DownPatience},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				dir := Dir(t.TempDir())
				release, err := dir.Hold()
				expect.NoError(t, err)
				set := func(s State) {
					if err := dir.SetStatus("GPU-a", Status{State: s, Reason: "why"}); err != nil {
						t.Error(err) // not of the test's own goroutine
					}
				}
				set(tc.state)
				for after, state := range map[time.Duration]State{tc.ready: Ready, tc.down: Down} {
					if after > 0 {
						time.AfterFunc(after, func() { set(state) })
					}
				}
				began, ended := time.Now(), make(chan error, 1)
				go func() {
					ended <- dir.Await(t.Context(), []string{"GPU-a"}, Waiting{ID: "c1", Namespace: "team", Pod: "job"})
				}()
				if tc.want > time.Second {
					time.Sleep(time.Second)
					if all, err := dir.Waiting("GPU-a"); err != nil || len(all) != 1 || all[0].Pod != "job" ||
						!strings.Contains(all[0].Reason, "why") {
						t.Errorf("who waits: %+v, %v", all, err)
					}
				}
				err = <-ended
				expect.Error(t, err, tc.refused)
				expect.Equal(t, tc.want, time.Since(began).Round(time.Second), "it took")
				if all, err := dir.Waiting("GPU-a"); err != nil || len(all) > 0 {
					t.Errorf("who waits at the end: %+v, %v", all, err)
				}
				expect.NoError(t, release())
			})
		})
	}
}

// As many containers have a share as may; those that have ended do not count, nor do those of
// other shares, nor the container itself.
func TestContainersOfAShare(t *testing.T) {
	d := Dir(t.TempDir())
	expect.NoError(t, d.SetStatus("GPU-a", Status{State: Ready}))
	ended := map[string]bool{}
	add := func(share, id string) error {
		runs := func(c Container) bool { return !ended[c.ID] }
		return d.AddContainer("GPU-a", Container{Share: share, ID: id, PID: 1}, 2, runs)
	}
	for _, id := range []string{"one", "two", "two"} {
		expect.NoErrorf(t, add("s", id), "container %s of two", id)
	}
	expect.Error(t, add("s", "three"), "2 containers have its share already")
	expect.NoErrorf(t, add("other", "four"), "a container of another share")
	ended["one"] = true
	expect.NoErrorf(t, add("s", "three"), "a container after another has ended")
	content, err := os.ReadFile(filepath.Join(string(d), "GPU-a", "containers.json"))
	if err != nil || strings.Contains(string(content), `"one"`) {
		t.Errorf("the file keeps what has ended: %s, %v", content, err)
	}
	expect.NoError(t, os.WriteFile(filepath.Join(string(d), "GPU-a", "containers.json"), []byte("{"), 0o644))
	expect.NoErrorf(t, add("s", "five"), "a damaged file keeps containers from starting")
}

func TestContainersThatStartAtOnce(t *testing.T) {
	d := Dir(t.TempDir())
	expect.NoError(t, d.SetStatus("GPU-a", Status{State: Ready}))
	var wg sync.WaitGroup
	var started atomic.Int32
	for i := range 20 {
		wg.Go(func() {
			c := Container{Share: "s", ID: fmt.Sprint(i)}
			if d.AddContainer("GPU-a", c, 4, func(Container) bool { return true }) == nil {
				started.Add(1)
			}
		})
	}
	wg.Wait()
	expect.Equal(t, 4, started.Load(), "containers started")
}
