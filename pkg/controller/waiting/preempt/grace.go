// SPDX-License-Identifier: Apache-2.0

package preempt

import (
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
)

const (
	// graceMost is the longest that others wait for a pod to end, whatever grace it gave itself:
	// as long as the cluster autoscaler waits for one.
	graceMost = 10 * time.Minute
	// lateMost is how long after its time a pod that terminates counts as one that is about to
	// go: its node may be away.
	lateMost = time.Minute
)

func seconds(n int64) time.Duration { return time.Duration(n) * time.Second }

// endings are the pods that terminate, and since when, as it was seen: the time of deletion that they have is by the
// clock of the API server.
type endings struct {
	mu sync.Mutex
	of map[types.UID]ending
}

// ending is since when a pod has been seen to terminate by a time, at which its grace is over.
type ending struct {
	by    metav1.Time
	since time.Time
}

// saw notes whether a pod terminates.
func (e *endings) saw(pod *corev1.Pod, now time.Time) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if by := pod.DeletionTimestamp; by == nil {
		delete(e.of, pod.UID)
	} else if known, is := e.of[pod.UID]; !is || !known.by.Equal(by) {
		e.of[pod.UID] = ending{*by, now}
	}
}

func (e *endings) forget(pod *corev1.Pod) {
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.of, pod.UID)
}

// overdue are those of the pods that terminate and are not about to go: they have had their grace, or as much of it as
// others wait for.
func (e *endings) overdue(pods []*corev1.Pod, now time.Time) map[types.UID]bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	out := map[types.UID]bool{}
	for _, pod := range pods {
		grace := seconds(ptr.Deref(pod.DeletionGracePeriodSeconds, 0))
		if known, is := e.of[pod.UID]; is && now.After(known.since.Add(min(grace, graceMost)+lateMost)) {
			out[pod.UID] = true
		}
	}
	return out
}

// overstays reports whether a pod that terminates stays by a grace longer than others wait: to
// evict it makes that shorter.
func (s situation) overstays(pod *corev1.Pod) bool {
	return s.overdue[pod.UID] && seconds(ptr.Deref(pod.DeletionGracePeriodSeconds, 0)) > graceMost
}

// shortened is the grace, in seconds, that a pod is evicted with; nil for its own. One that has
// had as much as others wait for has the usual one.
func shortened(pod *corev1.Pod) *int64 {
	switch {
	case pod.DeletionTimestamp != nil:
		return ptr.To[int64](corev1.DefaultTerminationGracePeriodSeconds)
	case ownGrace(pod) > graceMost:
		return ptr.To(int64(graceMost / time.Second))
	}
	return nil
}

func ownGrace(pod *corev1.Pod) time.Duration {
	return seconds(ptr.Deref(pod.Spec.TerminationGracePeriodSeconds, corev1.DefaultTerminationGracePeriodSeconds))
}

// graceOf is how long a pod has to end when it is evicted.
func graceOf(pod *corev1.Pod) time.Duration {
	if s := shortened(pod); s != nil {
		return seconds(*s)
	}
	return ownGrace(pod)
}
