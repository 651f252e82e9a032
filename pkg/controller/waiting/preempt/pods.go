// SPDX-License-Identifier: Apache-2.0

package preempt

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	corev1helpers "k8s.io/component-helpers/scheduling/corev1"
	"k8s.io/utils/ptr"

	"github.com/gpushare/dra-driver-gpushare/pkg/controller/podstate"
	"github.com/gpushare/dra-driver-gpushare/pkg/scheduling"
)

const systemSpace = metav1.NamespaceSystem

// counted is what the scheduler counts of a pod of the cache.
func counted(pod *corev1.Pod) corev1.ResourceList { return pod.Spec.Resources.Requests }

// startedAt is since when a pod has run, as the scheduler counts.
func startedAt(pod *corev1.Pod) time.Time {
	if pod.Status.StartTime != nil {
		return pod.Status.StartTime.Time
	}
	return pod.CreationTimestamp.Time
}

// preempts reports whether others may be evicted for a pod: its scheduler found no node for it, and nothing else is
// under way for it.
func preempts(pod *corev1.Pod) bool {
	_, waits := podstate.Unschedulable(pod)
	return waits && ptr.Deref(pod.Spec.PreemptionPolicy, corev1.PreemptLowerPriority) != corev1.PreemptNever &&
		// The scheduler evicts others for it already.
		pod.Status.NominatedNodeName == "" &&
		// It is placed with its group, of which this package does not know how much is missing.
		pod.Spec.SchedulingGroup == nil && !podstate.InGangOfOthers(pod)
}

// expendable reports whether a pod may be evicted for one of such a priority.
func (s situation) expendable(pod *corev1.Pod, than int32) bool {
	priority := corev1helpers.PodPriority(pod)
	return priority < than && priority <= scheduling.HighestOfUsers && pod.Namespace != systemSpace &&
		!podstate.IsMirror(pod) &&
		(pod.DeletionTimestamp == nil || s.overstays(pod))
}

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
