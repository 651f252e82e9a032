// SPDX-License-Identifier: Apache-2.0

package preempt

import (
	"cmp"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/gpushare/dra-driver-gpushare/internal/backoff"
)

// Wait is what is known of a pod that waits. That of a new one is empty.
type Wait struct {
	// after is when it is looked at again, missed how often in a row nobody was to be evicted.
	after  time.Time
	missed int
	// plan is whom to evict, as option.key, if that is still so when it is looked at again.
	plan string
	// planning is for how long it is looked for victims; zero for as long as for any.
	planning time.Duration
}

// due are those of the pods that are to be looked at now.
func (p *Preemptor) due(waiting []*corev1.Pod, waits map[types.UID]*Wait, now time.Time) []*corev1.Pod {
	return slices.DeleteFunc(slices.Clone(waiting), func(pod *corev1.Pod) bool {
		return p.evicting(func(e *eviction) bool { return e.pod == pod.UID }) > 0 || now.Before(waits[pod.UID].after) ||
			!p.failures[ownerOf(pod)].IsDue(now)
	})
}

// turns are the pods to look at now, of those that are due, which come in the order of the
// scheduler's queue: the first of the queue, and then those that have been due for longest, at
// most so many together, and of each namespace one after the other. So none waits for ever behind
// those whom nobody can be evicted for.
func turns(due []*corev1.Pod, since func(*corev1.Pod) time.Time, most int) [2][]*corev1.Pod {
	queue := inTurns(due)
	first := min(len(queue), most/2)
	rest := slices.Clone(queue[first:])
	slices.SortStableFunc(rest, func(a, b *corev1.Pod) int { return since(a).Compare(since(b)) })
	return [2][]*corev1.Pod{queue[:first], inTurns(rest)[:min(len(rest), most-first)]}
}

// inTurns are the first pod of each namespace, the second of each and so on.
func inTurns(pods []*corev1.Pod) []*corev1.Pod {
	before, nth := map[string]int{}, map[types.UID]int{}
	for _, pod := range pods {
		nth[pod.UID] = before[pod.Namespace]
		before[pod.Namespace]++
	}
	return slices.SortedStableFunc(slices.Values(pods), func(a, b *corev1.Pod) int {
		return cmp.Compare(nth[a.UID], nth[b.UID])
	})
}

// miss is for a pod for which nobody is to be evicted now.
func (w *Wait) miss(now time.Time) {
	w.plan = ""
	w.missed++
	w.after = now.Add(missed.After(w.missed))
}

// timeToPlan is for how long it is looked for victims: a part of a round.
func (w *Wait) timeToPlan() time.Duration { return cmp.Or(w.planning, roundMost/2) }

// tookTooLong gives a pod more time for its next turns, which come the more seldom.
func (w *Wait) tookTooLong() { w.planning = min(2*w.timeToPlan(), planningMost) }

// failures are, by ownerOf, how often others were evicted for pods that were not placed.
type failures map[string]backoff.Tries

// ownerOf is who makes pods such as this one. It uses names: a pod or a Job that is created again
// is the same to those who are evicted for it.
func ownerOf(pod *corev1.Pod) string {
	kind, name := "Pod", pod.Name
	if owner := metav1.GetControllerOf(pod); owner != nil {
		kind, name = owner.Kind, owner.Name
	}
	return pod.Namespace + "/" + kind + "/" + name
}

// add notes that the pod of an owner was not placed, and returns for how long no others are
// evicted.
func (f failures) add(owner string, now time.Time) time.Duration {
	f[owner] = f[owner].Plus(notPlaced, now)
	return f[owner].Wait(now)
}

// forget forgets those that have not failed again for long.
func (f failures) forget(now time.Time) {
	maps.DeleteFunc(f, func(_ string, of backoff.Tries) bool { return -of.Wait(now) > notPlaced.Most })
}
