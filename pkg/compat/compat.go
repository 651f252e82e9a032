// Package compat holds what the parts of gpu-compat-controller, and the packages for
// pods in the manner of ACK, have in common.
package compat

import corev1 "k8s.io/api/core/v1"

// Name is the controller's: of its Lease and Events, as the field manager under which
// the API server records what it wrote, and as the value of ManagedByLabel on what it
// made, of which it changes and removes no other.
const (
	Name           = "gpu-compat-controller"
	ManagedByLabel = "app.kubernetes.io/managed-by"
)

// Ended says whether all containers of the pod have ended for good.
func Ended(pod *corev1.Pod) bool {
	return pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
}
