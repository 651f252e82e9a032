// SPDX-License-Identifier: Apache-2.0

package health

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

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
			_, err := fmt.Sscan(strings.TrimSuffix(step, "?"), &xid)
			expect.NoError(t, err)
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
	expect.Equal(t, ".", story(t, tracker, second+602, "ok ok ok ok ok")[4], "after ten good minutes")
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
		if expect.Diff(before, tracker.Unhealthy()) != nil {
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
	expect.Equal(t, "xid-79", story(t, tracker, 100, "ok? ok? ok? ok?")[3], "without word from the driver")
	expect.Equal(t, ".", story(t, tracker, 110, "ok ok ok")[2], "after three good answers")
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
	expect.Equal(t, 0, len(tracker.Unhealthy()), "GPUs that are unhealthy")
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

// cut is what two GPUs in MIG mode and a whole one answer.
func cut() []gpu.Condition {
	return []gpu.Condition{
		{Index: 0, UUID: "GPU-a", Recovery: gpu.RecoveryNone, Instances: map[string]gpu.InstanceID{
			"MIG-a1": {GI: 1}, "MIG-a2": {GI: 2},
		}},
		{Index: 1, UUID: "GPU-b", Recovery: gpu.RecoveryNone, Instances: map[string]gpu.InstanceID{"MIG-b1": {GI: 1}}},
		{Index: 2, UUID: "GPU-c", Recovery: gpu.RecoveryNone},
	}
}

// Who is unhealthy after an event: the instance that it is about, and where it is about none, all of the GPU.
func TestWhomAnEventMeans(t *testing.T) {
	xid := func(uuid string, number uint64) gpu.Event {
		return gpu.Event{UUID: uuid, Kind: gpu.EventXID, XID: number}
	}
	of := func(e gpu.Event, gi, ci int) gpu.Event {
		e.OfInstance, e.Instance = true, gpu.InstanceID{GI: gi, CI: ci}
		return e
	}
	for name, tc := range map[string]struct {
		event gpu.Event
		want  string
	}{
		"of an instance":                         {of(xid("GPU-a", 94), 2, 0), "MIG-a2: xid-94"},
		"of the same ids on another GPU":         {of(xid("GPU-b", 94), 1, 0), "MIG-b1: xid-94"},
		"of a GPU instance as a whole":           {of(xid("GPU-a", 94), 1, gpu.NoCI), "MIG-a1: xid-94"},
		"of one that is not handed out":          {of(xid("GPU-a", 94), 5, 0), ""},
		"of another compute instance":            {of(xid("GPU-a", 94), 1, 3), ""},
		"of a program in it":                     {of(xid("GPU-a", 31), 2, 0), ""},
		"of all of a GPU in MIG mode":            {xid("GPU-a", 79), "GPU-a: xid-79"},
		"of a whole GPU":                         {xid("GPU-c", 79), "GPU-c: xid-79"},
		"ids on a GPU that is not in MIG mode":   {of(xid("GPU-c", 79), 0, 0), "GPU-c: xid-79"},
		"ids on a GPU of which nothing is known": {of(xid("GPU-d", 79), 0, 0), "GPU-d: xid-79"},
		"of nobody's health: cut otherwise":      {gpu.Event{UUID: "GPU-a", Kind: gpu.EventMIGChanged}, ""},
		"of all of a GPU in MIG mode, double errors": {gpu.Event{UUID: "GPU-a", Kind: gpu.EventDoubleBitECC},
			"GPU-a: double-bit-ecc"},
	} {
		t.Run(name, func(t *testing.T) {
			tracker := NewTracker(DefaultIgnored(), nil)
			tracker.ObserveAll(cut(), begin)
			tracker.Event(tc.event, begin.Add(time.Second))
			var got []string
			unhealthy := tracker.Unhealthy()
			for _, uuid := range slices.Sorted(maps.Keys(unhealthy)) {
				got = append(got, uuid+": "+unhealthy[uuid].Reason)
			}
			expect.Equal(t, tc.want, strings.Join(got, ", "), "told")
		})
	}
}

// An instance that had an error is used again when its GPU has been well for a while, and forgotten when it is gone.
func TestInstanceRecovers(t *testing.T) {
	ill := gpu.Event{UUID: "GPU-a", Kind: gpu.EventXID, XID: 94, OfInstance: true, Instance: gpu.InstanceID{GI: 2}}
	wants := func(recovery gpu.Recovery) func([]gpu.Condition) []gpu.Condition {
		return func(c []gpu.Condition) []gpu.Condition {
			c[0].Recovery = recovery
			return c
		}
	}
	for name, tc := range map[string]struct {
		then func([]gpu.Condition) []gpu.Condition
		want bool
	}{
		"well":                             {func(c []gpu.Condition) []gpu.Condition { return c }, false},
		"the driver does not tell whether": {wants(gpu.RecoveryUnknown), true},
		"the GPU is to be reset":           {wants(gpu.RecoveryReset), true},
		"gone": {func(c []gpu.Condition) []gpu.Condition {
			c[0].Recovery = gpu.RecoveryUnknown
			delete(c[0].Instances, "MIG-a2")
			return c
		}, false},
		"its GPU does not answer": {func(c []gpu.Condition) []gpu.Condition {
			c[0].Failure, c[0].Instances = gpu.FailureNoAnswer, nil
			return c
		}, true},
		"no GPU is asked": {func([]gpu.Condition) []gpu.Condition { return nil }, true},
	} {
		t.Run(name, func(t *testing.T) {
			tracker := NewTracker(DefaultIgnored(), nil)
			tracker.ObserveAll(cut(), begin)
			tracker.Event(ill, begin)
			for second := range 10 {
				tracker.ObserveAll(tc.then(cut()), begin.Add(time.Duration(second+1)*time.Second))
			}
			_, itself := tracker.Unhealthy()["MIG-a2"]
			_, other := tracker.Unhealthy()["MIG-a1"]
			expect.Equal(t, tc.want, itself, "it is unhealthy")
			expect.Equal(t, false, other, "another instance of the GPU is unhealthy")
		})
	}
}
