// SPDX-License-Identifier: Apache-2.0

package explain

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/gpushare/dra-driver-gpushare/pkg/scheduling"
)

// nearestText is how much of what a node lacks stands in one line with others, in runes.
const nearestText = 120

// Nearest says in a line which nodes come nearest to room for the pod, at most so many, and what
// they lack; of nodes that are closed to the pod, and not excluded by it, only those that would
// have room. It is empty where there is none.
func Nearest(r scheduling.Room, most int) string {
	var near, closed []scheduling.NodeRoom
	for _, n := range r.Nodes {
		switch {
		case n.Closed.By == scheduling.Open && n.GPUs > 0:
			near = append(near, n)
		case n.Closed.By != scheduling.Open && n.Closed.By != scheduling.ByPod && n.Fits:
			closed = append(closed, n)
		}
	}
	slices.SortStableFunc(near, func(a, b scheduling.NodeRoom) int {
		return cmp.Or(cmp.Compare(b.Nearness(), a.Nearness()), a.Farthest.Missing.Cmp(b.Farthest.Missing))
	})
	var parts []string
	if len(closed) > 0 {
		text := fmt.Sprintf("node %s has the GPUs free, but %s", closed[0].Name, Closed(closed[0]))
		if more := len(closed) - 1; more > 0 {
			text += fmt.Sprintf("; so have %d more that are closed to it", more)
		}
		parts = append(parts, text)
	}
	var nearest []string
	for _, n := range near[:min(len(near), most)] {
		var texts []string
		for _, lack := range n.Lacks {
			texts = append(texts, Lack(lack))
		}
		nearest = append(nearest, fmt.Sprintf("node %s (%s)", n.Name, shortened(strings.Join(texts, "; "))))
	}
	if len(nearest) > 0 {
		text := "nearest: " + strings.Join(nearest, ", ")
		if more := len(near) - len(nearest); more > 0 {
			text += fmt.Sprintf(" and %d more", more)
		}
		parts = append(parts, text)
	}
	return strings.Join(parts, ". ")
}

func shortened(text string) string {
	if runes := []rune(text); len(runes) > nearestText {
		return string(runes[:nearestText]) + "…"
	}
	return text
}

// Closed says what keeps a pod from a node.
func Closed(n scheduling.NodeRoom) string {
	switch n.Closed.By {
	case scheduling.ByPod:
		return "the pod's nodeSelector, its affinity or its other claims exclude it"
	case scheduling.Unschedulable:
		return "it takes no new pods (kubectl uncordon " + n.Name + " ends that)"
	case scheduling.ByTaint:
		return "the pod does not tolerate its taint " + n.Closed.Taint.ToString()
	case scheduling.ByResources:
		lacks := make([]string, 0, len(n.Closed.Short))
		for _, short := range n.Closed.Short {
			free := short.Free
			if free.Sign() < 0 {
				free = resource.Quantity{}
			}
			lacks = append(lacks, fmt.Sprintf("%s: asked %s, free %s", short.Name, short.Asked.String(), free.String()))
		}
		return strings.Join(lacks, "; ")
	case scheduling.PluginsUnknown:
		return "what it has for device plugins is not known"
	case scheduling.ResourcesUnknown:
		return "what it has is not known"
	default:
		return ""
	}
}
