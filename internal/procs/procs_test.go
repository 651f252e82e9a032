// SPDX-License-Identifier: Apache-2.0

package procs

import (
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
	expect.Equal(t, 8, now, "processors before it has settled")
	c.Step(time.Millisecond)
	expect.Equal(t, 1, now, "processors at rest")
	first, second := l.Busy(), l.Busy()
	first()
	c.Step(time.Hour)
	expect.Equal(t, 8, now, "processors while it is busy")
	second()
	// It is busy again before it has settled, and so nothing changes.
	c.Step(settle / 2)
	l.Busy()()
	c.Step(settle - time.Millisecond)
	expect.Equal(t, 8, now, "processors before it has settled again")
	c.Step(time.Millisecond)
	expect.Equal(t, []int{1, 8, 1}, was, "processors were")
}
