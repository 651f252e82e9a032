// SPDX-License-Identifier: Apache-2.0

package preempt

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
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
	_, mirror := pod.Annotations[corev1.MirrorPodAnnotationKey]
	return priority < than && priority <= scheduling.HighestOfUsers && pod.Namespace != systemSpace && !mirror &&
		(pod.DeletionTimestamp == nil || s.overstays(pod))
}
