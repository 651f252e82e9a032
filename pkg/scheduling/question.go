// SPDX-License-Identifier: Apache-2.0

package scheduling

import (
	"crypto/sha256"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
)

// QuestionID identifies a question.
type QuestionID [sha256.Size]byte

// Question identifies all that an answer for a pod depends on besides the cluster.
func Question(pod *corev1.Pod, claims []*resourceapi.ResourceClaim) (QuestionID, error) {
	hash := sha256.New()
	part := func(m interface{ Marshal() ([]byte, error) }) error {
		data, err := m.Marshal()
		fmt.Fprintf(hash, "%d:%s", len(data), data)
		return err
	}
	if err := part(&corev1.PodSpec{NodeSelector: pod.Spec.NodeSelector, Affinity: pod.Spec.Affinity,
		Tolerations: pod.Spec.Tolerations}); err != nil {
		return QuestionID{}, fmt.Errorf("encode where pod %s/%s can be: %w", pod.Namespace, pod.Name, err)
	}
	for _, claim := range claims {
		described := &resourceapi.ResourceClaim{Spec: claim.Spec}
		if len(claims) > 1 {
			described.Name = claim.Name
		}
		if OfScheduler(claim) {
			described.Annotations = claim.Annotations
		}
		if claim.Status.Allocation != nil {
			described.Status.Allocation = &resourceapi.AllocationResult{NodeSelector: claim.Status.Allocation.NodeSelector}
		}
		if err := part(described); err != nil {
			return QuestionID{}, fmt.Errorf("encode claim %s/%s: %w", claim.Namespace, claim.Name, err)
		}
	}
	return QuestionID(hash.Sum(nil)), nil
}
