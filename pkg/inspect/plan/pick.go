// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"cmp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
	"k8s.io/utils/ptr"

	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/inspect"
	"github.com/gpushare/dra-driver-gpushare/pkg/mode"
	"github.com/gpushare/dra-driver-gpushare/pkg/scheduling"
)

// packs and spreads are what a pod with shares can say of its node (deployments/options/pack-nodes).
const packs, spreads = string(mode.Binpack), string(mode.Spread)

// picker says whether a pod goes to node a rather than to node b, of two that have room.
type picker func(a, b *scheduling.NodeRoom) bool

// ranking makes the picker for one pod, of what is taken before it.
type ranking func(s *simulation) picker

// preferring is the picker of a pod, which may say itself which nodes it prefers: by labels of
// nodes, or by the pods with shares that are there. Both weigh more than CPU and memory for the scheduler.
func (s *simulation) preferring(pod *corev1.Pod) picker {
	var terms []corev1.PreferredSchedulingTerm
	if a := pod.Spec.Affinity; a != nil && a.NodeAffinity != nil {
		terms = a.NodeAffinity.PreferredDuringSchedulingIgnoredDuringExecution
	}
	wanted, err := nodeaffinity.NewPreferredSchedulingTerms(terms)
	if err != nil {
		// The API server takes no such pod.
		wanted = &nodeaffinity.PreferredSchedulingTerms{}
	}
	placement := placementOf(pod)
	pick := s.rank(s)
	if len(terms) == 0 && placement == "" {
		return pick
	}
	return func(a, b *scheduling.NodeRoom) bool {
		if better := cmp.Or(cmp.Compare(wanted.Score(s.nodeOf[a.Name]), wanted.Score(s.nodeOf[b.Name])),
			cmp.Compare(s.nodes[a.Name].company(placement), s.nodes[b.Name].company(placement))); better != 0 {
			return better > 0
		}
		return pick(a, b)
	}
}

// placementOf is what a pod says of the other pods with shares, where a policy has made a
// preference of it.
func placementOf(pod *corev1.Pod) string {
	a, label := pod.Spec.Affinity, pod.Labels[v1alpha1.LabelNodePlacement]
	if a != nil && (label == packs && a.PodAffinity != nil || label == spreads && a.PodAntiAffinity != nil) {
		return label
	}
	return ""
}

// company is how the scheduler counts the pods with shares of a node: as the new pod prefers
// them, and as they prefer the new one.
func (c capacity) company(placement string) int {
	switch placement {
	case packs:
		return 2*c.packing - c.spreading
	case spreads:
		return -c.packing - 2*c.spreading
	default:
		return 0
	}
}

// leastRequested is what weighs most for the default scheduler: the node on which the least
// CPU and memory is requested; and of equal ones that with the fewest pods of the plan.
func leastRequested(s *simulation) picker {
	return func(a, b *scheduling.NodeRoom) bool {
		x, y := s.nodes[a.Name], s.nodes[b.Name]
		return cmp.Or(cmp.Compare(x.part(), y.part()), cmp.Compare(x.pods, y.pods), strings.Compare(a.Name, b.Name)) < 0
	}
}

// part is which part of CPU and memory is requested.
func (c capacity) part() float64 {
	var sum float64
	for _, name := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory} {
		all, requested := c.allocatable[name], c.requested[name]
		if total := all.AsApproximateFloat64(); total > 0 {
			sum += requested.AsApproximateFloat64() / total
		}
	}
	return sum
}

// fullest is the node of which the least GPU memory is left that has room.
func fullest(s *simulation) picker {
	s.countLeft()
	return func(a, b *scheduling.NodeRoom) bool {
		return cmp.Or(cmp.Compare(s.left[a.Name], s.left[b.Name]), strings.Compare(a.Name, b.Name)) < 0
	}
}

// countLeft counts the GPU memory that nobody has of the nodes that were not counted since they changed, as the table
// does: the places of MIG instances on one GPU have its memory together.
func (s *simulation) countLeft() {
	of := slices.DeleteFunc(slices.Clone(s.slices), func(slice *resourceapi.ResourceSlice) bool {
		_, counted := s.left[ptr.Deref(slice.Spec.NodeName, "")]
		return counted
	})
	for _, n := range inspect.New(inspect.Input{Slices: of, Claims: s.claims}).Nodes {
		s.left[n.Name] = n.MemoryGiB.Total - ptr.Deref(n.MemoryGiB.Allocated, 0)
	}
}
