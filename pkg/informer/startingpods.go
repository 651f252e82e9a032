// SPDX-License-Identifier: Apache-2.0

package informer

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/dynamic-resource-allocation/resourceclaim"
)

// StartingPods selects the pods that are on nodes and of which no container runs yet.
func StartingPods() string {
	return fields.AndSelectors(
		fields.OneTermEqualSelector("status.phase", string(corev1.PodPending)),
		fields.OneTermNotEqualSelector("spec.nodeName", ""),
	).String()
}

// SlimStartingPod is a transform for an informer of these pods: it leaves of each what
// AwaitsClaims reads, which is next to nothing of pods without claims.
func SlimStartingPod(object any) (any, error) {
	return SlimPod(object, func(pod, kept *corev1.Pod) {
		if len(pod.Spec.ResourceClaims) > 0 || pod.Status.ExtendedResourceClaimStatus != nil {
			kept.Spec = corev1.PodSpec{NodeName: pod.Spec.NodeName, ResourceClaims: pod.Spec.ResourceClaims}
			kept.Status = pod.Status
		}
	})
}

// AwaitsClaims says whether a pod is on a node and, as far as it shows, none of its
// claims has been prepared: it is the kubelet's and the driver's turn.
func AwaitsClaims(pod *corev1.Pod) bool {
	if pod.DeletionTimestamp != nil || pod.Spec.NodeName == "" || pod.Status.Phase != corev1.PodPending || Started(pod) {
		return false
	}
	for range resourceclaim.PodClaims(pod) {
		return true
	}
	return false
}

// Started says whether the pod's sandbox is there or a container ever was. The kubelet
// has all claims prepared before it makes the sandbox, and a sandbox that is lost leaves
// the containers' states.
func Started(pod *corev1.Pod) bool {
	if pod.Status.Phase == corev1.PodRunning {
		return true
	}
	if slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReadyToStartContainers && c.Status == corev1.ConditionTrue
	}) {
		return true
	}
	statuses := slices.Concat(pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses)
	return slices.ContainsFunc(statuses, func(s corev1.ContainerStatus) bool {
		return s.State.Running != nil || s.State.Terminated != nil || s.LastTerminationState.Terminated != nil
	})
}
