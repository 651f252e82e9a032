// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/inspect/stranded"
	"github.com/gpushare/dra-driver-gpushare/pkg/text"
)

const (
	// fewStranded is below how many GPUs nobody needs to be told.
	fewStranded = 1.0
	// nodesNamed is how many nodes are named.
	nodesNamed = 8
)

// strandedGPUs looks for free GPUs that pods cannot use for want of CPU or memory.
func strandedGPUs(s *Snapshot) []Finding {
	if s.cannotRead("pods", "nodes", "resourceslices.resource.k8s.io", "resourceclaims.resource.k8s.io") {
		return nil
	}
	c := stranded.Cluster{Slices: s.Slices, Claims: s.Claims, Nodes: s.Nodes, Pods: s.Pods}
	of, sum := stranded.Find(c).Stranded, 0.0
	nodes := slices.SortedFunc(maps.Keys(of), func(a, b string) int {
		return cmp.Or(cmp.Compare(of[b], of[a]), cmp.Compare(a, b))
	})
	for i, node := range nodes {
		sum += of[node]
		nodes[i] = fmt.Sprintf("%s (%.1f)", node, of[node])
	}
	if sum < fewStranded {
		return nil
	}
	do := "have gpu-compat-controller choose the nodes of pods with GPUs: docs/packing.md#results"
	few, mean := stranded.FewCPUs(c)
	if few = slices.DeleteFunc(few, s.hasFewCPUsTaint); len(few) > 0 {
		which, rest := strings.Join(few, " "), ""
		if len(few) > nodesNamed {
			which, rest = "NODE...", fmt.Sprintf(", for the %d nodes with fewer than %.1f", len(few), mean)
		}
		do = "have pods without GPUs prefer other nodes than those with few CPUs per GPU (docs/packing.md#results): " +
			"kubectl taint nodes " + which + " " + v1alpha1.NodeTaintFewCPUs + ":PreferNoSchedule" + rest
	}
	return []Finding{{Level: Note, Do: do, Text: fmt.Sprintf("%.1f free GPUs are stranded: beside them nodes have too "+
		"little CPU or memory left for pods with GPUs as they run now: %s", sum, text.List(nodes, nodesNamed))}}
}

// hasFewCPUsTaint reports whether a node has the taint that pods without GPUs avoid.
func (s *Snapshot) hasFewCPUsTaint(name string) bool {
	return slices.ContainsFunc(s.Nodes, func(n *corev1.Node) bool {
		return n.Name == name && slices.ContainsFunc(n.Spec.Taints,
			func(t corev1.Taint) bool { return t.Key == v1alpha1.NodeTaintFewCPUs })
	})
}
