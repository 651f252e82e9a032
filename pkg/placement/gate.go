// SPDX-License-Identifier: Apache-2.0

package placement

import (
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
)

// IsGate reports whether a scheduling gate is that of the option best-node-gate.
func IsGate(gate corev1.PodSchedulingGate) bool { return gate.Name == v1alpha1.GateBestNode }

// AtGate reports whether a pod is at the gate of the option best-node-gate.
func AtGate(pod *corev1.Pod) bool { return slices.ContainsFunc(pod.Spec.SchedulingGates, IsGate) }
