// SPDX-License-Identifier: Apache-2.0

package podstate

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/dynamic-resource-allocation/resourceclaim"

	"github.com/gpushare/dra-driver-gpushare/pkg/deviceplugin"
)

// AwaitsClaims reports whether a pod is on a node and, as far as it shows, none of its
// claims has been prepared: it is the kubelet's and the driver's turn.
func AwaitsClaims(pod *corev1.Pod) bool {
	if pod.DeletionTimestamp != nil || pod.Spec.NodeName == "" || pod.Status.Phase != corev1.PodPending || started(pod) {
		return false
	}
	for range resourceclaim.PodClaims(pod) {
		return true
	}
	return false
}

// started reports whether the pod's sandbox is there or a container ever was. The kubelet
// has all claims prepared before it makes the sandbox, and a sandbox that is lost leaves
// the containers' states.
func started(pod *corev1.Pod) bool {
	return deviceplugin.Started(pod) || slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReadyToStartContainers && c.Status == corev1.ConditionTrue
	})
}
