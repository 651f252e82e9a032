// SPDX-License-Identifier: Apache-2.0

package placement

import (
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
)

// IsGate reports whether a scheduling gate is one of the option best-node-gate.
func IsGate(gate corev1.PodSchedulingGate) bool {
	return gate.Name == v1alpha1.GateBestNode || isCostly(gate)
}

// AtGate reports whether a pod is at a gate of the option best-node-gate.
func AtGate(pod *corev1.Pod) bool { return slices.ContainsFunc(pod.Spec.SchedulingGates, IsGate) }

// AtCostlyGate reports whether a pod is at the gate of costly claims, which stays until the scheduler's search is sure
// to be short.
func AtCostlyGate(pod *corev1.Pod) bool {
	return slices.ContainsFunc(pod.Spec.SchedulingGates, isCostly)
}

func isCostly(gate corev1.PodSchedulingGate) bool { return gate.Name == v1alpha1.GateCostlyClaims }
