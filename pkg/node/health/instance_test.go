// SPDX-License-Identifier: Apache-2.0

package health

import (
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
)

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
	for name, tc := range map[string]struct {
		then func([]gpu.Condition) []gpu.Condition
		want bool
	}{
		"well": {func(c []gpu.Condition) []gpu.Condition { return c }, false},
		"the driver does not tell whether": {func(c []gpu.Condition) []gpu.Condition {
			c[0].Recovery = gpu.RecoveryUnknown
			return c
		}, true},
		"the GPU is to be reset": {func(c []gpu.Condition) []gpu.Condition {
			c[0].Recovery = gpu.RecoveryReset
			return c
		}, true},
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
			if _, got := tracker.Unhealthy()["MIG-a2"]; got != tc.want {
				t.Errorf("unhealthy: %v, want %v", got, tc.want)
			}
			if _, other := tracker.Unhealthy()["MIG-a1"]; other {
				t.Error("another instance of the GPU is unhealthy")
			}
		})
	}
}
