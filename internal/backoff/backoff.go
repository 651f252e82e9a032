// SPDX-License-Identifier: Apache-2.0

// Package backoff computes how long to wait before the next try.
package backoff

import "time"

// Doubling is a wait that starts at Least and doubles with each further time in a row, up to Most. It is for
// what has a pace of its own, such as each pod of a node that one Reconcile looks at: the caller counts.
type Doubling struct{ Least, Most time.Duration }

// doublings is how often a wait is doubled at most: what is longer than 2^30 times the least is
// none.
const doublings = 30

// After is the wait after so many times in a row, which are one at least.
func (d Doubling) After(times int) time.Duration {
	wait := d.Least
	for range min(times-1, doublings) {
		if wait >= d.Most {
			break
		}
		wait *= 2
	}
	return min(wait, d.Most)
}

// Tries are those of what is asked again and again: at first at once, and then after waits.
type Tries struct {
	made int
	next time.Time
}

// IsDue reports whether it may be tried now.
func (t Tries) IsDue(now time.Time) bool { return !now.Before(t.next) }

// Wait is how long it is until it may be tried, which is less than nothing where it may be.
func (t Tries) Wait(now time.Time) time.Duration { return t.next.Sub(now) }

// Plus are the tries after one more, with the waits of d.
func (t Tries) Plus(d Doubling, now time.Time) Tries {
	return Tries{t.made + 1, now.Add(d.After(t.made + 1))}
}
