// SPDX-License-Identifier: Apache-2.0

package manager

import "time"

// Backoff is how long to wait for what has not helped yet: Least at first, and after each
// further time in a row twice as long, up to Most. It is for what has a pace of its own, such as
// each pod of a node that one Reconcile looks at; of errors of a Reconcile the queue takes care.
type Backoff struct{ Least, Most time.Duration }

// doublings is how often a wait is doubled at most: what is longer than 2^30 times the least is
// none.
const doublings = 30

// After is the wait after so many times in a row, which are one at least.
func (b Backoff) After(times int) time.Duration {
	wait := b.Least
	for range min(times-1, doublings) {
		if wait >= b.Most {
			break
		}
		wait *= 2
	}
	return min(wait, b.Most)
}
