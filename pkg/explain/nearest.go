// SPDX-License-Identifier: Apache-2.0

package explain

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// nearestText is how much of what a node lacks stands in one line with others, in runes.
const nearestText = 120

// Nearness orders nodes: those with room, then those of which most of what is asked for is
// there, then those that are closed to the pod.
func (n *NodeRoom) Nearness() int {
	switch {
	case n.Open():
		return 3 * int(Suits)
	case n.Closed == "":
		return int(Suits) + int(n.Farthest.Step)
	default:
		return int(n.Farthest.Step)
	}
}

// Nearest says in a line which nodes come nearest to room for the pod, at most so many, and what
// they lack; of nodes that are closed to the pod, and not excluded by it, only those that would
// have room. It is empty where there is none.
func (r *Room) Nearest(most int) string {
	var near, closed []NodeRoom
	for _, n := range r.Nodes {
		switch {
		case n.Closed == "" && n.GPUs > 0:
			near = append(near, n)
		case n.Closed != "" && n.Fits && !n.Excluded:
			closed = append(closed, n)
		}
	}
	slices.SortStableFunc(near, func(a, b NodeRoom) int {
		return cmp.Or(cmp.Compare(b.Nearness(), a.Nearness()), a.Farthest.Missing.Cmp(b.Farthest.Missing))
	})
	var parts []string
	if len(closed) > 0 {
		text := fmt.Sprintf("node %s has the GPUs free, but %s", closed[0].Name, closed[0].Closed)
		if more := len(closed) - 1; more > 0 {
			text += fmt.Sprintf("; so have %d more that are closed to it", more)
		}
		parts = append(parts, text)
	}
	var nearest []string
	for _, n := range near[:min(len(near), most)] {
		var texts []string
		for _, lack := range n.Lacks {
			texts = append(texts, lack.Said())
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

// Said is the lack in words, with the request that it is of.
func (l *Lack) Said() string {
	if l.Request == "" {
		return l.Text
	}
	return l.Request + ": " + l.Text
}

func shortened(text string) string {
	if runes := []rune(text); len(runes) > nearestText {
		return string(runes[:nearestText]) + "…"
	}
	return text
}
