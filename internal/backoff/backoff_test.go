// SPDX-License-Identifier: Apache-2.0

package backoff

import (
	"testing"
	"time"
)

func TestDoublingDoublesUpToItsMost(t *testing.T) {
	b := Doubling{Least: 2 * time.Second, Most: time.Minute}
	for times, want := range map[int]time.Duration{
		0: 2 * time.Second, 1: 2 * time.Second, 2: 4 * time.Second, 5: 32 * time.Second, 6: time.Minute, 7: time.Minute,
		1 << 40: time.Minute,
	} {
		if got := b.After(times); got != want {
			t.Errorf("after %d times it waits %s, want %s", times, got, want)
		}
	}
}
