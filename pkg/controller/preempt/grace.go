// SPDX-License-Identifier: Apache-2.0

package preempt

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"
)

const (
	// graceMost is the longest that others wait for a pod to end, whatever grace it gave itself:
	// as long as the cluster autoscaler waits for one.
	graceMost = 10 * time.Minute
	// lateMost is how long after its time a pod that terminates counts as one that is about to
	// go: its node may be away, and the clock of the API server, by which it terminates, another.
	lateMost = time.Minute
)

func seconds(n int64) time.Duration { return time.Duration(n) * time.Second }

// overdue reports whether a pod terminates and is not about to go: it has had its grace, or as much of it as others
// wait for.
func overdue(pod *corev1.Pod, now time.Time) bool {
	if pod.DeletionTimestamp == nil {
		return false
	}
	grace := seconds(ptr.Deref(pod.DeletionGracePeriodSeconds, 0))
	return now.After(pod.DeletionTimestamp.Add(min(grace, graceMost) - grace + lateMost))
}

// overstays reports whether a pod that terminates stays by a grace longer than others wait: to
// evict it makes that shorter.
func (s situation) overstays(pod *corev1.Pod) bool {
	return overdue(pod, s.now) && seconds(ptr.Deref(pod.DeletionGracePeriodSeconds, 0)) > graceMost
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
