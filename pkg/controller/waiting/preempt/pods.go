// SPDX-License-Identifier: Apache-2.0

package preempt

import (
	"cmp"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	corev1helpers "k8s.io/component-helpers/scheduling/corev1"
	"k8s.io/utils/ptr"

	"github.com/gpushare/dra-driver-gpushare/pkg/controller/podstate"
	"github.com/gpushare/dra-driver-gpushare/pkg/scheduling"
)

const (
	// highestOfUsers is the highest priority that a PriorityClass of users may have: what is
	// above belongs to the system.
	highestOfUsers = 1_000_000_000
	systemSpace    = metav1.NamespaceSystem
)

// counted is what the scheduler counts of a pod of the cache.
func counted(pod *corev1.Pod) corev1.ResourceList { return pod.Spec.Resources.Requests }

// startedAt is since when a pod has run, as the scheduler counts.
func startedAt(pod *corev1.Pod) time.Time {
	if pod.Status.StartTime != nil {
		return pod.Status.StartTime.Time
	}
	return pod.CreationTimestamp.Time
}

// asksForDevices reports whether a pod of the cache may have devices.
func asksForDevices(pod *corev1.Pod) bool {
	if len(pod.Spec.ResourceClaims) > 0 {
		return true
	}
	for name := range counted(pod) {
		if scheduling.Extended(name) {
			return true
		}
	}
	return false
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

// inQueueOrder sorts pods as the scheduler's queue does.
func inQueueOrder(pods []*corev1.Pod) {
	slices.SortFunc(pods, func(a, b *corev1.Pod) int {
		return cmp.Or(cmp.Compare(corev1helpers.PodPriority(b), corev1helpers.PodPriority(a)),
			a.CreationTimestamp.Compare(b.CreationTimestamp.Time), cmp.Compare(a.UID, b.UID))
	})
}

// expendable reports whether a pod may be evicted for one of such a priority.
func (s situation) expendable(pod *corev1.Pod, than int32) bool {
	priority := corev1helpers.PodPriority(pod)
	_, mirror := pod.Annotations[corev1.MirrorPodAnnotationKey]
	return priority < than && priority <= highestOfUsers && pod.Namespace != systemSpace && !mirror &&
		(pod.DeletionTimestamp == nil || s.overstays(pod))
}

// unseen reports whether a pod asks for something of a node, or of the pods around it, that is not looked at here, so
// that it might not fit where its resources, its volumes and its devices do.
func unseen(pod *corev1.Pod) bool {
	hasPort := func(c corev1.Container) bool {
		return slices.ContainsFunc(c.Ports, func(p corev1.ContainerPort) bool { return p.HostPort != 0 })
	}
	apart := func(c corev1.TopologySpreadConstraint) bool { return c.WhenUnsatisfiable == corev1.DoNotSchedule }
	// Those that it has to be beside could be the victims.
	a := pod.Spec.Affinity
	return a != nil && a.PodAffinity != nil && len(a.PodAffinity.RequiredDuringSchedulingIgnoredDuringExecution) > 0 ||
		slices.ContainsFunc(pod.Spec.TopologySpreadConstraints, apart) ||
		slices.ContainsFunc(slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers), hasPort)
}
