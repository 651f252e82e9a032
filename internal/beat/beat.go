// SPDX-License-Identifier: Apache-2.0

// Package beat has what is looked at again and again looked at at the same moments: what wakes a processor
// costs more than most looks do.
package beat

import (
	"context"
	"time"

	"k8s.io/utils/clock"
)

// After is Clock.After until the next multiple of the interval, which all that ask for the same interval, or
// for one that divides it, share. It is no longer than the interval.
func After(c clock.Clock, interval time.Duration) <-chan time.Time {
	return c.After(until(c.Now(), interval))
}

// Late is After, and a moment more: for what would keep others waiting that are done at the beat, or wait for
// them, as where both ask one library.
func Late(c clock.Clock, interval time.Duration) <-chan time.Time {
	return c.After(until(c.Now().Add(-moment), interval))
}

const moment = 100 * time.Millisecond

// Until calls do at once and then at each beat, until the context ends.
func Until(ctx context.Context, c clock.Clock, interval time.Duration, do func(context.Context)) {
	for ctx.Err() == nil {
		do(ctx)
		select {
		case <-ctx.Done():
		case <-After(c, interval):
		}
	}
}

func until(now time.Time, interval time.Duration) time.Duration {
	return now.Truncate(interval).Add(interval).Sub(now)
}
