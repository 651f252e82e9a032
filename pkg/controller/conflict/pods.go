// SPDX-License-Identifier: Apache-2.0

package conflict

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/fields"

	"github.com/gpushare/dra-driver-gpushare/pkg/informer"
)

// Selector selects the pods that are on nodes and of which no container runs yet.
func Selector() string {
	return fields.AndSelectors(
		fields.OneTermEqualSelector("status.phase", string(corev1.PodPending)),
		fields.OneTermNotEqualSelector("spec.nodeName", ""),
	).String()
}

// Transform is a transform for an informer of the pods: it leaves of each what Waits
// reads, which is next to nothing of pods without claims.
func Transform(object any) (any, error) {
	return informer.SlimPod(object, func(pod, kept *corev1.Pod) {
		if len(pod.Spec.ResourceClaims) > 0 || pod.Status.ExtendedResourceClaimStatus != nil {
			kept.Spec = corev1.PodSpec{NodeName: pod.Spec.NodeName, ResourceClaims: pod.Spec.ResourceClaims}
			kept.Status = pod.Status
		}
	})
}
