// SPDX-License-Identifier: Apache-2.0

package scheduling

import (
	"cmp"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
)

// Best is the node with room that a pod lands on, nil where there is none. A pod may say which nodes it prefers, by
// their labels: for the scheduler that weighs more than what rank compares, by which the lesser of two nodes comes
// first.
func (s *Simulation) Best(pod *corev1.Pod, room Room, rank func(a, b string) int) *NodeRoom {
	if !room.Fits() {
		return nil
	}
	score := map[string]int64{}
	if a := pod.Spec.Affinity; a != nil && a.NodeAffinity != nil {
		wanted, err := nodeaffinity.NewPreferredSchedulingTerms(
			a.NodeAffinity.PreferredDuringSchedulingIgnoredDuringExecution)
		for _, node := range s.Nodes {
			if err == nil { // else the API server takes no such pod
				score[node.Name] = wanted.Score(node)
			}
		}
	}
	var best *NodeRoom
	for i := range room.Nodes {
		n := &room.Nodes[i]
		if n.Open() && (best == nil || cmp.Or(cmp.Compare(score[best.Name], score[n.Name]),
			rank(n.Name, best.Name), strings.Compare(n.Name, best.Name)) < 0) {
			best = n
		}
	}
	return best
}

// LeastRequested ranks nodes by what weighs most for the default scheduler: the one on which the least CPU and memory
// is requested; and of equal ones that with the fewest pods that were placed.
func (s *Simulation) LeastRequested(a, b string) int {
	x, y := s.Resources[a], s.Resources[b]
	return cmp.Or(cmp.Compare(x.part(), y.part()), cmp.Compare(x.Placed, y.Placed))
}

// part is which part of CPU and memory is requested.
func (r NodeResources) part() (sum float64) {
	for _, name := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory} {
		all, requested := r.Allocatable[name], r.Requested[name]
		if total := all.AsApproximateFloat64(); total > 0 {
			sum += requested.AsApproximateFloat64() / total
		}
	}
	return sum
}
