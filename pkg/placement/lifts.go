// SPDX-License-Identifier: Apache-2.0

package placement

import "time"

const (
	// quiet is for how long no claim must have come or gone, though a pod waited, before a node lifts its limits: until
	// then the round of the GPUs goes on, and who waits has a turn in it.
	quiet = 5 * time.Second
	// liftFor is for how long a lift lasts: the scheduler looks at the pods that wait as soon as it sees it.
	liftFor = 5 * time.Second
	// liftsMost is how many lifts follow each other, each by twice as much; the last is of more shares than a GPU has.
	// Then there are pauses, up to pauseMost.
	liftsMost = 7
	pauseMost = time.Minute
	// liftsKept is for how long it matters that lifts did not help.
	liftsKept = 5 * time.Minute
)

// Lifts are those of the limits of a node for pods that wait though nothing changes on the node. As long as they do not
// help, each is of more than the one before. The zero Lifts is that of a node that never lifted any.
type Lifts struct {
	// times counts those in a row that did not help, at is when the last began.
	times int
	at    time.Time
	// told is when the node was first told of a pod that waits since a claim last came to it or went.
	told time.Time
}

// Next are the Lifts of a node now. waits reports whether it was told of a pod that waits, changed is when a claim last
// came to the node or went.
func (l Lifts) Next(waits bool, changed, now time.Time) Lifts {
	helped := !changed.Before(l.at) && changed.Sub(l.at) < liftFor
	if helped || now.Sub(l.at) >= liftsKept {
		l = Lifts{told: l.told}
	}
	if l.told.Before(changed) {
		l.told = time.Time{}
	}
	if waits && l.told.IsZero() {
		l.told = now
	}
	// It was not told before the change.
	if !waits || now.Sub(l.told) < quiet || now.Sub(l.at) < l.interval() {
		return l
	}
	return Lifts{times: l.times + 1, at: now, told: l.told}
}

// interval is how long after the begin of the last lift the next may begin.
func (l Lifts) interval() time.Duration {
	interval := liftFor
	for range l.times - liftsMost + 1 {
		interval = min(2*interval, pauseMost)
	}
	return interval
}

// Shares is how many shares more than its limits the node offers of each GPU now.
func (l Lifts) Shares(now time.Time) int64 {
	if l.times == 0 || now.Sub(l.at) >= liftFor {
		return 0
	}
	return 1 << (min(l.times, liftsMost) - 1)
}
