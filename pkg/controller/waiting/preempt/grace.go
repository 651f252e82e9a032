// SPDX-License-Identifier: Apache-2.0

package preempt

import (
	"time"

	corev1 "k8s.io/api/core/v1"
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

// ending is a pod that terminates, by a time, in seconds, at which its grace is over. That time is by the clock of the
// API server, so it is noted since when it is seen.
type ending struct {
	uid types.UID
	by  int64
}

func endingOf(pod *corev1.Pod) ending { return ending{pod.UID, pod.DeletionTimestamp.Unix()} }

// overdue are those of the pods that terminate and are not about to go: they have had their grace, or as much of it as
// others wait for. since is for how long one has been seen to end.
func overdue(pods []*corev1.Pod, since func(ending) time.Duration) map[types.UID]bool {
	out := map[types.UID]bool{}
	for _, pod := range pods {
		grace := seconds(ptr.Deref(pod.DeletionGracePeriodSeconds, 0))
		if pod.DeletionTimestamp != nil && since(endingOf(pod)) > min(grace, graceMost)+lateMost {
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
