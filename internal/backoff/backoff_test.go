// SPDX-License-Identifier: Apache-2.0

package backoff

import (
	"testing"
	"time"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
)

func TestDoublingDoublesUpToItsMost(t *testing.T) {
	b := Doubling{Least: 2 * time.Second, Most: time.Minute}
	for times, want := range map[int]time.Duration{
		0: 2 * time.Second, 1: 2 * time.Second, 2: 4 * time.Second, 5: 32 * time.Second, 6: time.Minute, 7: time.Minute,
		1 << 40: time.Minute,
	} {
		expect.Equal(t, want, b.After(times), "after %times d it waits", times)
	}
}

func TestTriesWaitLongerEachTime(t *testing.T) {
	var tries Tries
	now, waits := time.Unix(1000, 0), Doubling{Least: time.Second, Most: 2 * time.Second}
	for i, wait := range []time.Duration{0, time.Second, 2 * time.Second, 2 * time.Second} {
		if wait > 0 && tries.IsDue(now.Add(wait-1)) {
			t.Errorf("try %d is due before %s have passed", i, wait)
		}
		if now = now.Add(wait); !tries.IsDue(now) {
			t.Errorf("try %d is not due after %s", i, wait)
		}
		tries = tries.Plus(waits, now)
	}
}
