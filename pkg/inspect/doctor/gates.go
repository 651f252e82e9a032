// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/text"
)

// gatedMost is how long a pod may be at the gate of the option best-node-gate: a leader takes it off within 5 s, and
// another one leads within 16 s.
const gatedMost = time.Minute

// gates looks for pods whose gate nobody takes off.
func gates(s *Snapshot) []Finding {
	var held []string
	for _, pod := range s.Pods {
		if isGated(pod) && s.Now.Sub(pod.CreationTimestamp.Time) > gatedMost {
			held = append(held, pod.Namespace+"/"+pod.Name)
		}
	}
	if len(held) == 0 {
		return nil
	}
	return []Finding{{Level: Error, Text: fmt.Sprintf("%d pods are held at the scheduling gate %s, which "+
		"gpu-compat-controller should remove within seconds: %s", len(held), v1alpha1.GateBestNode,
		text.List(held, nodesNamed)),
		Do: "see in the log of gpu-compat-controller what keeps it from this; or gate no further pods, and remove the " +
			"gate from these: docs/packing.md#the-gate"}}
}

// isGated reports whether the gate best-node alone keeps a pod from the scheduler. The gate of costly claims does not
// count: pods may wait there for long, and Events tell why.
func isGated(pod *corev1.Pod) bool {
	gates := pod.Spec.SchedulingGates
	return pod.DeletionTimestamp == nil && len(gates) == 1 && gates[0].Name == v1alpha1.GateBestNode
}
