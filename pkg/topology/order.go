// SPDX-License-Identifier: Apache-2.0

package topology

import (
	"slices"

	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
)

// exactOrder is up to how many GPUs the best ring is searched for. More are
// ordered GPU by GPU.
const exactOrder = 8

// Order returns the indices of the GPUs in an order in which neighbours are
// linked as well as they can be: that of the ring with the fewest neighbours
// without NVLink, then the largest sum of the neighbours' bandwidths, begun so
// that its slowest link lies between the last GPU and the first. Of equal
// orders it is the one with the lowest indices. GPUs that the machine does not
// have follow in ascending order.
//
// More than 8 GPUs are ordered from the lowest index on, each followed by the
// best linked one that is left.
func Order(m *gpu.Machine, gpus []int) []int {
	g := newGraph(m, func(index int) bool { return slices.Contains(gpus, index) })
	order := make([]int, len(g.gpus))
	for i := range order {
		order[i] = i
	}
	switch {
	case g.uniform() || len(order) < 3:
	case len(order) > exactOrder:
		order = g.nearest()
	default:
		order = g.begin(g.bestRing())
	}
	out := make([]int, 0, len(gpus))
	for _, i := range order {
		out = append(out, g.gpus[i].Index)
	}
	for _, index := range slices.Sorted(slices.Values(gpus)) {
		if !slices.Contains(out, index) {
			out = append(out, index)
		}
	}
	return out
}

// bestRing searches all rings from the first GPU on.
func (g *graph) bestRing() []int {
	n := len(g.gpus)
	var best []int
	bestSlow, bestSum := 0, 0
	ring := []int{0}
	var extend func(slow, sum int)
	extend = func(slow, sum int) {
		last := ring[len(ring)-1]
		if best != nil && slow > bestSlow {
			return
		}
		if len(ring) == n {
			slow, sum = slow+g.slow(last, 0), sum+g.gbps[last][0]
			if best == nil || slow < bestSlow || slow == bestSlow && sum > bestSum {
				best, bestSlow, bestSum = slices.Clone(ring), slow, sum
			}
			return
		}
		for next := range n {
			if !slices.Contains(ring, next) {
				ring = append(ring, next)
				extend(slow+g.slow(last, next), sum+g.gbps[last][next])
				ring = ring[:len(ring)-1]
			}
		}
	}
	extend(0, 0)
	return best
}

// slow is 1 for two GPUs without NVLink between them.
func (g *graph) slow(a, b int) int {
	if g.nvlink[a][b] == 0 {
		return 1
	}
	return 0
}

// begin turns the ring so that its slowest link is the one that closes it.
func (g *graph) begin(ring []int) []int {
	n := len(ring)
	slowest := g.gbps[ring[n-1]][ring[0]]
	for i := 1; i < n; i++ {
		slowest = min(slowest, g.gbps[ring[i-1]][ring[i]])
	}
	var best []int
	for range 2 {
		for i := range n {
			turned := slices.Concat(ring[i:], ring[:i])
			if g.gbps[turned[n-1]][turned[0]] == slowest && (best == nil || slices.Compare(turned, best) < 0) {
				best = turned
			}
		}
		ring = slices.Clone(ring)
		slices.Reverse(ring)
	}
	return best
}

// nearest goes from the first GPU on to the best linked one that is left.
func (g *graph) nearest() []int {
	if len(g.gpus) == 0 {
		return nil
	}
	order := []int{0}
	for len(order) < len(g.gpus) {
		last, next := order[len(order)-1], -1
		for i := range g.gpus {
			if !slices.Contains(order, i) && (next < 0 || g.gbps[last][i] > g.gbps[last][next]) {
				next = i
			}
		}
		order = append(order, next)
	}
	return order
}
