// SPDX-License-Identifier: Apache-2.0

package waiting

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/gpushare/dra-driver-gpushare/pkg/controller/waiting/preempt"
)

const (
	// patience is how long a pod waits before it is told why, or others are evicted for it. Most pods that the
	// scheduler refuses at first are placed within moments, when others end or
	// what was applied together with them is there.
	patience = 5 * time.Second
	// lookAgain is when a pod is looked at again of which what holds soon changes: whose GPUs are free, so that the
	// scheduler is about to place it, or others take them.
	lookAgain = time.Minute
	// withoutNearest is how long a pod waits for a look at what is free before it is told without
	// what a look finds.
	withoutNearest = 3 * fresh
)

// memory is what earlier looks at a pod leave.
type memory struct {
	uid types.UID
	// pod is as it was at the last look, settled Reconciler.settled then, and due when the next one is.
	pod     *corev1.Pod
	settled int64
	due     time.Time
	found
	// othersHold is look.othersHold of the last look, preemption what is remembered of whom the pod may preempt. They are
	// guarded by Reconciler.mu and by the round of preemptions.
	othersHold bool
	preemption preempt.Wait
}

// found is what was found of a pod's GPUs.
type found struct {
	// freeOn is the node on which they are found free at each look since freeSince, empty
	// where they were not at the last.
	freeOn    string
	freeSince time.Time
	// unknownSince is since when there is no time to look; zero where there was.
	unknownSince time.Time
}

// wait is how long it is until the pod is to be looked at. One that is new or has changed has some patience; what the
// nodes offer has settled when all are looked at.
func (m *memory) wait(pod *corev1.Pod, settled int64, now time.Time) time.Duration {
	if soon := now.Add(patience); pod != m.pod && (m.pod == nil || soon.Before(m.due)) {
		m.due = soon
	}
	if settled != m.settled {
		m.due = now
	}
	m.pod, m.settled = pod, settled
	return m.due.Sub(now)
}

// free notes that a look has found the GPUs free on a node, and reports whether they have been there
// for so long that the scheduler would have taken them.
func (f *found) free(on string, now time.Time) bool {
	if on != f.freeOn {
		f.freeOn, f.freeSince = on, now
	}
	f.unknownSince = time.Time{}
	return now.Sub(f.freeSince) >= lookAgain
}

// unknown is what there is to say while there is no time to look: nothing at first, then the message alone. What the
// pod was told stays; where its GPUs were free, the message may be wrong.
func (f *found) unknown(a answer, told bool, now time.Time) answer {
	if f.unknownSince.IsZero() {
		f.unknownSince = now
	}
	since := now.Sub(f.unknownSince)
	a.again, a.stays = min(max(fresh, since), RepeatAfter), told || since < withoutNearest || f.freeOn != ""
	return a
}
