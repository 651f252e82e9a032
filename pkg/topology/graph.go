// SPDX-License-Identifier: Apache-2.0

// Package topology ranks sets of GPUs by how well they are linked, and orders
// the GPUs of a set so that neighbours are linked. It is pure.
package topology

import (
	"math/bits"

	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
)

// graph is a machine's GPUs by position, in the order of their indices, and
// what links each pair.
type graph struct {
	gpus []gpu.GPU
	// gbps is the bandwidth between two GPUs; 0 if nothing is known of a link.
	gbps [][]int
	// nvlink is the same, and 0 too where the link is not NVLink.
	nvlink [][]int
	// bridged says that GPUs are linked with each other by NVLink, not by way of
	// NVSwitches.
	bridged bool
}

// newGraph returns the graph of these GPUs of the machine; indices that it
// does not have are left out.
func newGraph(m *gpu.Machine, wanted func(index int) bool) *graph {
	g := &graph{}
	position := map[int]int{}
	for _, one := range m.GPUs {
		if wanted(one.Index) {
			position[one.Index] = len(g.gpus)
			g.gpus = append(g.gpus, one)
		}
	}
	g.gbps, g.nvlink = square(len(g.gpus)), square(len(g.gpus))
	for _, l := range m.Links {
		a, okA := position[l.A]
		b, okB := position[l.B]
		if !okA || !okB {
			continue
		}
		g.gbps[a][b], g.gbps[b][a] = l.GBps, l.GBps
		if l.Kind == gpu.LinkNVLink {
			g.nvlink[a][b], g.nvlink[b][a] = l.GBps, l.GBps
			g.bridged = g.bridged || !l.Switched
		}
	}
	return g
}

func square(n int) [][]int {
	rows := make([][]int, n)
	for i := range rows {
		rows[i] = make([]int, n)
	}
	return rows
}

// uniform reports whether all pairs of GPUs are linked alike.
func (g *graph) uniform() bool {
	for a := range g.gpus {
		for b := range a {
			if g.gbps[a][b] != g.gbps[1][0] {
				return false
			}
		}
	}
	return true
}

// positions are the GPUs of a mask, in which bit i stands for position i.
func positions(mask uint64) []int {
	out := make([]int, 0, bits.OnesCount64(mask))
	for ; mask != 0; mask &= mask - 1 {
		out = append(out, bits.TrailingZeros64(mask))
	}
	return out
}
