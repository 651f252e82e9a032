// SPDX-License-Identifier: Apache-2.0

package procs

import (
	"slices"
	"testing"
	"time"

	testingclock "k8s.io/utils/clock/testing"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
)

func TestProcessorsFollowTheWork(t *testing.T) {
	c := testingclock.NewFakeClock(time.Unix(0, 0))
	now := 8
	var was []int
	l := newLimiter(c, func(n int) int {
		before := now
		if n > 0 {
			now, was = n, append(was, n)
		}
		return before
	})
	c.Step(settle - time.Millisecond)
	if now != 8 {
		t.Fatalf("%d processors before it has settled", now)
	}
	c.Step(time.Millisecond)
	if now != 1 {
		t.Fatalf("%d processors at rest", now)
	}
	first, second := l.Busy(), l.Busy()
	first()
	c.Step(time.Hour)
	expect.Equal(t, 8, now, "processors while it is busy")
	second()
	// It is busy again before it has settled, and so nothing changes.
	c.Step(settle / 2)
	l.Busy()()
	c.Step(settle - time.Millisecond)
	if now != 8 {
		t.Errorf("%d processors before it has settled again", now)
	}
	c.Step(time.Millisecond)
	if want := []int{1, 8, 1}; !slices.Equal(was, want) {
		t.Errorf("processors were %v, want %v", was, want)
	}
}
