// SPDX-License-Identifier: Apache-2.0

package topology

import (
	"cmp"
	"slices"

	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
)

// Singles returns the indices of the machine's GPUs in the order in which single
// ones are to be handed out.
//
// On a machine that has no Sets, the first k free GPUs in this order are the best
// k by NVLink, whichever GPUs are free: a GPU with fewer lanes than the others
// comes last. GPUs that are equal in that come as one meets them going from the
// lowest index on to the closest GPU that is left: so those below one PCIe switch
// come one after the other.
//
// On a machine with sets it is the order of the indices.
func Singles(m *gpu.Machine) []int {
	g := newGraph(m, func(int) bool { return true })
	order, ok := g.singles()
	out := make([]int, 0, len(g.gpus))
	for i, one := range g.gpus {
		if ok {
			one = g.gpus[order[i]]
		}
		out = append(out, one.Index)
	}
	return out
}

// singles returns an order of the positions of which the first k free ones are
// always the best k by NVLink. If there is no such order, ok is false; so it is, too, where
// only some GPUs are bridged: they are asked for as linked sets, and that there are
// such must not depend on the health of the others.
//
// An order is one if each GPU has at least as much NVLink bandwidth to any third
// GPU as any GPU after it has: then no set gets worse when a GPU of it is
// exchanged for an earlier one. All GPUs on NVSwitches are such a machine, however
// many lanes of some are down, and so are GPUs without NVLink.
func (g *graph) singles() (order []int, ok bool) {
	if g.bridged && !g.linkedThroughout() {
		return nil, false
	}
	order = g.nearest()
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(sum(g.nvlink[b]), sum(g.nvlink[a])) })
	for i, earlier := range order {
		for _, later := range order[i+1:] {
			for third := range g.gpus {
				if third != earlier && third != later && g.nvlink[earlier][third] < g.nvlink[later][third] {
					return nil, false
				}
			}
		}
	}
	return order, true
}

// linkedThroughout reports whether there is NVLink between all GPUs.
func (g *graph) linkedThroughout() bool {
	for a := range g.gpus {
		for b := range a {
			if g.nvlink[a][b] == 0 {
				return false
			}
		}
	}
	return true
}

func sum(values []int) int {
	total := 0
	for _, v := range values {
		total += v
	}
	return total
}
