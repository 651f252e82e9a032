// SPDX-License-Identifier: Apache-2.0

package cache

import (
	"bytes"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/controller/podstate"
	"github.com/gpushare/dra-driver-gpushare/pkg/scheduling"
)

// What keepNomination notes of a pod, as annotations that the cache alone has.
const (
	prefersNodes = "prefers nodes"
	nominatedBy  = "nominated by " + v1alpha1.ControllerName
)

// NominablePods asks for the pods without a node with what a controller that nominates nodes needs: their scheduler,
// their owner, the label of their placement, the node that is nominated, and what the scheduler counts of their
// containers, as the resources of the pod itself.
func (r *Reader) NominablePods() Unscheduled {
	r.cache.nominations = true
	return r.UnscheduledPods()
}

// PrefersNodes reports whether a pod of NominablePods chooses among the nodes that it can be on, or depends on the pods
// there: a nomination would decide in place of what it says.
func PrefersNodes(pod *corev1.Pod) bool { return pod.Annotations[prefersNodes] != "" }

// NominatedByController reports whether gpu-compat-controller nominated the node of a pod of NominablePods.
func NominatedByController(pod *corev1.Pod) bool { return pod.Annotations[nominatedBy] != "" }

func keepNomination(pod, kept *corev1.Pod) {
	if len(kept.Spec.ResourceClaims)+len(kept.Spec.InitContainers)+len(kept.Spec.Containers) == 0 {
		return
	}
	kept.Spec.SchedulerName = pod.Spec.SchedulerName
	if owner := metav1.GetControllerOf(pod); owner != nil {
		kept.OwnerReferences = []metav1.OwnerReference{*owner}
	}
	kept.Spec.Resources = &corev1.ResourceRequirements{Requests: podstate.Requests(pod)}
	kept.Status.NominatedNodeName = pod.Status.NominatedNodeName
	if placement, says := pod.Labels[v1alpha1.LabelNodePlacement]; says {
		metav1.SetMetaDataLabel(&kept.ObjectMeta, v1alpha1.LabelNodePlacement, placement)
	}
	if choosesNodes(&pod.Spec) {
		metav1.SetMetaDataAnnotation(&kept.ObjectMeta, prefersNodes, "true")
	}
	if pod.Status.NominatedNodeName != "" && slices.ContainsFunc(pod.ManagedFields, ofNomination) {
		metav1.SetMetaDataAnnotation(&kept.ObjectMeta, nominatedBy, "true")
	}
}

func choosesNodes(spec *corev1.PodSpec) bool {
	a := spec.Affinity
	return len(spec.TopologySpreadConstraints) > 0 || spec.HostNetwork ||
		a != nil && (a.PodAffinity != nil || a.PodAntiAffinity != nil ||
			a.NodeAffinity != nil && len(a.NodeAffinity.PreferredDuringSchedulingIgnoredDuringExecution) > 0) ||
		scheduling.HasHostPort(spec)
}

func ofNomination(entry metav1.ManagedFieldsEntry) bool {
	return entry.Manager == v1alpha1.ControllerName && entry.FieldsV1 != nil &&
		bytes.Contains(entry.FieldsV1.GetRawBytes(), []byte(`"f:nominatedNodeName"`))
}
