// SPDX-License-Identifier: Apache-2.0

package pending

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/gpushare/dra-driver-gpushare/pkg/controller/cache"
)

const (
	// withoutNearest is how long a pod waits for a look at what is free before it is told without
	// what a look finds.
	withoutNearest = 3 * fresh
	// withNearest makes the message with the nodes that come nearest another one than that
	// without: who was told the one is told the other.
	withNearest = ". Nearest"
)

// memory is what earlier looks at a pod leave.
type memory struct {
	uid types.UID
	// freeOn is the node on which its GPUs are found free at each look since freeSince, empty
	// where they were not at the last.
	freeOn    string
	freeSince time.Time
	// unknownSince is since when there is no time to look; zero where there was.
	unknownSince time.Time
	// answeredAt is when it was last found out what is free. Of message there was then about to
	// say, both empty where its GPUs were free.
	answeredAt     time.Time
	message, about string
}

// memoryOf is what is remembered of a pod. Only sync may use it, which is called again as long
// as there is something, and forgets it at the end.
func (w *watcher) memoryOf(pod *corev1.Pod) *memory {
	key := cache.Key(pod)
	m := w.memories[key]
	if m == nil || m.uid != pod.UID {
		m = &memory{uid: pod.UID}
		w.memories[key] = m
	}
	return m
}

// answered says whether a look has found something out about the pod lately: others go first.
func (m *memory) answered(now time.Time) bool {
	return !m.answeredAt.IsZero() && now.Sub(m.answeredAt) < RepeatAfter
}

// full notes that a look has found too little, and what of a message there was to say.
func (m *memory) full(message, about string, now time.Time) {
	*m = memory{uid: m.uid, answeredAt: now, message: message, about: about}
}

// free notes that a look has found the GPUs free on a node, and says whether they have been there
// for so long that the scheduler would have taken them.
func (m *memory) free(on string, now time.Time) bool {
	since := now
	if on == m.freeOn {
		since = m.freeSince
	}
	*m = memory{uid: m.uid, answeredAt: now, freeOn: on, freeSince: since}
	return now.Sub(since) >= lookAgain
}

// unknown is what there is to say while there is no time to look: nothing at first, then the
// message alone. It counts as told where the pod was told more; where its GPUs were free, the
// message may be wrong.
func (m *memory) unknown(a answer, now time.Time) answer {
	if m.unknownSince.IsZero() {
		m.unknownSince = now
	}
	since := now.Sub(m.unknownSince)
	again := min(max(fresh, since), RepeatAfter)
	if since < withoutNearest || m.freeOn != "" {
		return answer{stays: true, again: again}
	}
	if a.about == m.message {
		a.about = m.about
	}
	a.again = again
	return a
}
