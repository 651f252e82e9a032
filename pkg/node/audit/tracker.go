// SPDX-License-Identifier: Apache-2.0

package audit

import (
	"maps"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

const (
	// raiseAfter is in how many readings in a row something has to be seen before it is a
	// finding: processes end between being listed and being looked up, and a pod's status
	// follows its containers.
	raiseAfter = 2
	// goneAfter is for how long processes of a pod that is gone are left to end: the kubelet
	// gives them a second.
	goneAfter = time.Minute
	// clearAfter is for how long it has to be gone before it is over, so that what comes and
	// goes is one finding.
	clearAfter = 30 * time.Second
	// staleAfter is after how long nothing of it holds on a GPU that does not answer.
	staleAfter = 5 * time.Minute
)

// Tracker makes findings that last of those of single moments. It is pure; the time is told.
// It is not safe for concurrent use.
type Tracker struct {
	tracked map[key]*tracked
	found   map[Kind]int64
}

// tracked is what is known of one finding.
type tracked struct {
	Finding
	// seen counts the readings in a row until it is raised.
	seen   int
	raised bool
	// first is when it was seen first, since when it was raised, seenAt when it was seen last,
	// and holds until when it is not known to be over: later, where the GPU did not answer.
	first, since, seenAt, holds time.Time
}

// lasts reports whether it has been seen for long enough to be a finding.
func (t *tracked) lasts() bool {
	return t.seen >= raiseAfter && (t.Kind != GonePod || t.seenAt.Sub(t.first) >= goneAfter)
}

// NewTracker returns a Tracker that knows of nothing.
func NewTracker() *Tracker {
	t := &Tracker{tracked: map[key]*tracked{}, found: map[Kind]int64{}}
	for _, kind := range Kinds() {
		t.found[kind] = 0
	}
	return t
}

// Observe takes in what was found in one reading, in which the GPUs with these UUIDs
// answered. Of others nothing new is known.
func (t *Tracker) Observe(now time.Time, findings []Finding, answered []string) {
	seen := map[key]bool{}
	for _, f := range findings {
		seen[f.key()] = true
		known := t.tracked[f.key()]
		if known == nil {
			known = &tracked{Finding: f, first: now}
			t.tracked[f.key()] = known
		}
		known.seenAt, known.holds = now, now
		known.seen++
		if !known.raised && known.lasts() {
			// With the amounts of now; later ones change nothing about it.
			known.Finding, known.raised, known.since = f, true, now
			t.found[f.Kind]++
		}
	}
	maps.DeleteFunc(t.tracked, func(k key, known *tracked) bool {
		switch {
		case seen[k]:
			return false
		case !slices.Contains(answered, k.uuid) && now.Sub(known.seenAt) < staleAfter:
			known.holds = now
			return false
		default:
			return !known.raised || now.Sub(known.holds) >= clearAfter
		}
	})
}

// Holding are the findings that hold, in order.
func (t *Tracker) Holding() []Finding {
	var out []Finding
	for _, known := range t.tracked {
		if known.raised {
			out = append(out, known.Finding)
		}
	}
	slices.SortFunc(out, compareFindings)
	return out
}

// Counts are how many findings hold, and how many there have been.
func (t *Tracker) Counts() (holding map[Kind]int, found map[Kind]int64) {
	holding = map[Kind]int{}
	for _, kind := range Kinds() {
		holding[kind] = 0
	}
	for _, known := range t.tracked {
		if known.raised {
			holding[known.Kind]++
		}
	}
	return holding, maps.Clone(t.found)
}

// Due are the pods to evict: with a finding of one of the kinds that has held for the grace
// time, was seen in the last reading, at that time, and for which a pod may be evicted.
func (t *Tracker) Due(now time.Time, kinds []Kind, grace time.Duration) []Pod {
	due := map[types.UID]Pod{}
	for _, known := range t.tracked {
		if known.raised && known.MayEvict && slices.Contains(kinds, known.Kind) && known.seenAt.Equal(now) &&
			now.Sub(known.since) >= grace {
			due[known.Pod.UID] = known.Pod
		}
	}
	return slices.SortedFunc(maps.Values(due), func(a, b Pod) int {
		return compareFindings(Finding{Pod: a}, Finding{Pod: b})
	})
}
