// SPDX-License-Identifier: Apache-2.0

package mps

import (
	"strings"
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
