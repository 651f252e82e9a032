// SPDX-License-Identifier: Apache-2.0

package cache

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	toolscache "k8s.io/client-go/tools/cache"

	"github.com/gpushare/dra-driver-gpushare/pkg/controller/podstate"
)

// onNode is the index of pods by their node.
const onNode = "node"

// Live are the pods that have not ended.
type Live struct{ *Objects[*corev1.Pod] }

// LivePods asks for all pods that have not ended: what decides who is evicted for whom. Of what
// its containers ask for, a pod has the sum as the scheduler counts it, as the resources of the
// pod itself.
func (r *Reader) LivePods() Live {
	selector := fields.AndSelectors(
		fields.OneTermNotEqualSelector("status.phase", string(corev1.PodSucceeded)),
		fields.OneTermNotEqualSelector("status.phase", string(corev1.PodFailed)),
	).String()
	return Live{objects[*corev1.Pod](r, r.need(r.cache.pods("pods", metav1.NamespaceAll, withFields(selector),
		slimPod(keepLive), toolscache.Indexers{onNode: index(func(pod *corev1.Pod) []string {
			return some(pod.Spec.NodeName, !unscheduled(pod))
		})})), nil)}
}

// OnNode returns those that are on a node.
func (l Live) OnNode(node string) []*corev1.Pod { return l.by(onNode, node) }

// keepLive copies what is kept of such a pod.
func keepLive(pod, kept *corev1.Pod) {
	kept.DeletionGracePeriodSeconds = pod.DeletionGracePeriodSeconds
	if owner := metav1.GetControllerOf(pod); owner != nil {
		kept.OwnerReferences = []metav1.OwnerReference{*owner}
	}
	// PodDisruptionBudgets and other pods' affinities select by them.
	kept.Labels = pod.Labels
	for _, key := range append(podstate.GangAnnotations(), corev1.MirrorPodAnnotationKey) {
		if value, is := pod.Annotations[key]; is {
			metav1.SetMetaDataAnnotation(&kept.ObjectMeta, key, value)
		}
	}
	kept.Spec = corev1.PodSpec{
		NodeName: pod.Spec.NodeName, Priority: pod.Spec.Priority, PreemptionPolicy: pod.Spec.PreemptionPolicy,
		SchedulingGroup: pod.Spec.SchedulingGroup, SchedulingGates: pod.Spec.SchedulingGates,
		SchedulerName:                 pod.Spec.SchedulerName,
		ResourceClaims:                pod.Spec.ResourceClaims,
		TerminationGracePeriodSeconds: pod.Spec.TerminationGracePeriodSeconds,
		Resources:                     &corev1.ResourceRequirements{Requests: podstate.Requests(pod)},
	}
	if a := pod.Spec.Affinity; a != nil && a.PodAntiAffinity != nil {
		kept.Spec.Affinity = &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{
			RequiredDuringSchedulingIgnoredDuringExecution: a.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution,
		}}
	}
	kept.Status = corev1.PodStatus{
		Phase: pod.Status.Phase, NominatedNodeName: pod.Status.NominatedNodeName, StartTime: pod.Status.StartTime,
	}
	for _, condition := range pod.Status.Conditions {
		if condition.Type == corev1.PodScheduled && pod.Spec.NodeName == "" {
			kept.Status.Conditions = []corev1.PodCondition{condition}
		}
	}
}
