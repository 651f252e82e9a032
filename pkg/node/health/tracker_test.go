// SPDX-License-Identifier: Apache-2.0

package health

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
)

var begin = time.Date(2026, 11, 22, 8, 0, 0, 0, time.UTC)

// story is what happens to one GPU, a second after the other: "ok" and "ok?" are answers
// with and without a recovery action, "reset", "lost", "hangs" other answers, "79" an XID
// followed by an answer.
func story(t *testing.T, tracker *Tracker, from int, steps string) (reasons []string) {
	t.Helper()
	for i, step := range strings.Fields(steps) {
		now := begin.Add(time.Duration(from+i) * time.Second)
		c := gpu.Condition{UUID: "GPU-a", Recovery: gpu.RecoveryNone}
		switch step {
		case "ok":
		case "ok?":
			c.Recovery = gpu.RecoveryUnknown
		case "reset":
			c.Recovery = gpu.RecoveryReset
		case "lost":
			c.Failure = gpu.FailureLost
		case "hangs":
			c.Failure = gpu.FailureNoAnswer
		default:
			var xid uint64
			if _, err := fmt.Sscan(strings.TrimSuffix(step, "?"), &xid); err != nil {
				t.Fatal(err)
			}
			tracker.Event(gpu.Event{UUID: "GPU-a", Kind: gpu.EventXID, XID: xid}, now)
			if strings.HasSuffix(step, "?") {
				c.Recovery = gpu.RecoveryUnknown
			}
		}
		tracker.Observe(c, now)
		reason := "."
		if u, ok := tracker.Unhealthy()["GPU-a"]; ok {
			reason = u.Reason
		}
		reasons = append(reasons, reason)
	}
	return reasons
}

func TestTracker(t *testing.T) {
	for name, tc := range map[string]struct{ steps, want string }{
		"well":                       {"ok ok ok?", ". . ."},
		"an application's own error": {"13 31 43 45 68 109 ok", ". . . . . . ."},
		"an error that an application makes as it likes": {"32 69 137 11 14 25 37 80 ok", ". . . . . . . . ."},
		"such a one, and the GPU is ill":                 {"32 reset", ". recovery-gpu-reset"},
		"an error, and at once better":                   {"79 ok ok ok ok ok ok", "xid-79 xid-79 xid-79 xid-79 xid-79 . ."},
		"the driver wants a reset": {"ok reset reset ok ok ok ok ok", ". recovery-gpu-reset recovery-gpu-reset " +
			"recovery-gpu-reset recovery-gpu-reset recovery-gpu-reset recovery-gpu-reset ."},
		"the first reason stays": {"79 lost reset ok ok ok ok ok",
			"xid-79 xid-79 xid-79 xid-79 xid-79 xid-79 xid-79 ."},
		"lost, and there again": {"lost lost ok? ok? ok? ok? ok?", "lost lost lost lost lost lost ."},
		"hangs":                 {"hangs ok", "no-answer no-answer"},
		"an error, no action told": {"79? ok? ok? ok? ok? ok? ok? ok? ok? ok?", "xid-79 xid-79 xid-79 xid-79 xid-79 " +
			"xid-79 xid-79 xid-79 xid-79 xid-79"},
		"each answer has to be good": {"lost ok ok lost ok ok lost ok ok ok ok ok", "lost lost lost lost lost lost lost " +
			"lost lost lost lost ."},
	} {
		t.Run(name, func(t *testing.T) {
			got := strings.Join(story(t, NewTracker(DefaultIgnored(), nil), 0, tc.steps), " ")
			expect.Equal(t, tc.want, got, "the story")
		})
	}
}

// A GPU that comes and goes is trusted later each time.
func TestRelapses(t *testing.T) {
	tracker := NewTracker(nil, nil)
	var unhealthyFor []int
	second := 0
	for range 8 {
		story(t, tracker, second, "lost")
		for n := 1; ; n++ {
			second++
			if story(t, tracker, second, "ok")[0] == "." {
				unhealthyFor = append(unhealthyFor, n)
				break
			}
		}
		second++
	}
	expect.Equal(t, []int{5, 10, 20, 40, 80, 160, 300, 300}, unhealthyFor, "seconds until it is used again")
	story(t, tracker, second+601, "lost")
	if got := story(t, tracker, second+602, "ok ok ok ok ok"); got[4] != "." {
		t.Errorf("after ten good minutes: %q", got)
	}
}

// Eight GPUs that change every second for a minute are not published more often than once
// a second each, and in all far less: most of the time they are simply not used.
func TestFlapping(t *testing.T) {
	tracker, random, changes := NewTracker(nil, nil), rand.New(rand.NewPCG(1, 2)), 0
	for second := range 60 {
		now := begin.Add(time.Duration(second) * time.Second)
		before := tracker.Unhealthy()
		for i := range 8 {
			c := gpu.Condition{UUID: fmt.Sprintf("GPU-%d", i), Recovery: gpu.RecoveryNone}
			if random.IntN(2) == 0 {
				c.Failure = gpu.FailureLost
			}
			tracker.Observe(c, now)
		}
		if !cmp.Equal(before, tracker.Unhealthy()) {
			changes++
		}
	}
	if changes > 20 {
		t.Errorf("%d of 60 seconds had a change", changes)
	}
}

func TestKnownFromBefore(t *testing.T) {
	known := map[string]Unhealthy{"GPU-a": {Reason: "xid-79", Message: "m", Since: begin}}
	tracker := NewTracker(nil, known)
	// The file may be of a plugin that did not write that.
	want := map[string]Unhealthy{"GPU-a": {Reason: "xid-79", Message: "m", Since: begin, NeedsAction: true}}
	expect.Equal(t, want, tracker.Unhealthy(), "unhealthy")
	if got := story(t, tracker, 100, "ok? ok? ok? ok?"); got[3] != "xid-79" {
		t.Errorf("without word from the driver it became healthy: %q", got)
	}
	if got := story(t, tracker, 110, "ok ok ok"); got[2] != "." {
		t.Errorf("it did not recover: %q", got)
	}
}

// The clock is set while the plugin is not running, and what was known is of before that.
func TestClockThatIsSet(t *testing.T) {
	for _, by := range []time.Duration{-9000 * time.Hour, -3 * time.Hour, -time.Second, 0, time.Second, 3 * time.Hour} {
		for _, uuid := range []string{"GPU-a", "MIG-a"} {
			tracker := NewTracker(nil, map[string]Unhealthy{uuid: {Reason: "lost", Since: begin.Add(-by)}})
			good, well := 0, gpu.Condition{UUID: "GPU-a", Recovery: gpu.RecoveryNone}
			if uuid == "MIG-a" {
				well.Instances = map[string]gpu.InstanceID{uuid: {}}
			}
			for ; len(tracker.Unhealthy()) > 0 && good < 60; good++ {
				tracker.Observe(well, begin.Add(time.Duration(good)*time.Second))
			}
			if good < goodAnswers || good > 1+int(holdAtLeast/time.Second) {
				t.Errorf("%s, by a clock set by %v, is well again after %d good answers, one a second", uuid, by, good)
			}
		}
	}
}

func TestEventsOfNobody(t *testing.T) {
	tracker := NewTracker(nil, nil)
	tracker.Event(gpu.Event{Kind: gpu.EventXID, XID: 79}, begin)
	tracker.Event(gpu.Event{UUID: "GPU-a", Kind: gpu.EventRecoveryChanged}, begin)
	if got := tracker.Unhealthy(); len(got) != 0 {
		t.Errorf("unhealthy are %v", got)
	}
	tracker.Event(gpu.Event{UUID: "GPU-a", Kind: gpu.EventDoubleBitECC}, begin)
	tracker.Event(gpu.Event{UUID: "GPU-b", Kind: gpu.EventUnavailable}, begin)
	want := map[string]Unhealthy{
		"GPU-a": {Reason: "double-bit-ecc", Message: "a double bit ECC error", Since: begin, NeedsAction: true},
		"GPU-b": {Reason: "gpu-unavailable", Message: "the driver calls the GPU unavailable", Since: begin,
			NeedsAction: true},
	}
	expect.Equal(t, want, tracker.Unhealthy(), "unhealthy")
}

func TestParseXIDs(t *testing.T) {
	for list, want := range map[string]string{"": "", "79": "79", " 31, 13,31 ": "13,31", "13,": "13"} {
		if got, err := ParseXIDs(list); err != nil || FormatXIDs(got) != want {
			t.Errorf("%q: %s, %v; want %s", list, FormatXIDs(got), err, want)
		}
	}
	for _, list := range []string{"x", "-1", "13;31", "99999999999"} {
		if got, err := ParseXIDs(list); err == nil {
			t.Errorf("%q: %v, want an error", list, got)
		}
	}
	if XID(79).String() != "XID 79 (the GPU has fallen off the bus)" || XID(7).String() != "XID 7" {
		t.Errorf("%s, %s", XID(79), XID(7))
	}
}
