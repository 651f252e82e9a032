// SPDX-License-Identifier: Apache-2.0

package topology

import (
	"cmp"
	"math/bits"
	"slices"

	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
)

// Set is several GPUs of one model that a claim gets as one device.
type Set struct {
	// GPUs are the GPUs' indices, ascending.
	GPUs []int
	// NVLinkGBps is the smallest NVLink bandwidth of any two of the GPUs, in
	// GB/s and one direction; 0 if two of them have no NVLink between them.
	NVLinkGBps int
}

const (
	// mostGPUs bounds the size of a set: its device's name holds the indices.
	mostGPUs = 16
	// exactGPUs is up to how many GPUs all sets of a machine are looked at.
	exactGPUs = 10
	// mostSets is how many sets of a size are published at most. It is more than
	// the 70 sets of four that eight GPUs have.
	mostSets = 80
)

// Sets returns the sets of GPUs to publish, those of each size from the best to the
// worst: the larger the smallest bandwidth of any two of its GPUs, then
// the larger the sum over all pairs, then the lower the indices, the better. A
// pair of which no link is known counts as 0. Sizes are 2, 4, 8, and that of
// the whole machine where it is a power of two up to 16. The sizes take turns, that
// with the fewest sets first: the scheduler looks at one device after the other, and
// what a claim gets is mostly among the first of its size.
//
// A machine has no sets if single GPUs in the order of Singles are always the
// best by NVLink: without NVLink, with all GPUs on NVSwitches, even if lanes of some
// are down, and with NVLink of one bandwidth between all GPUs. One with bridges
// between some of its GPUs always has sets.
//
// Sets are left out where that makes no difference: whichever GPUs are free,
// the first of the returned sets of a size that is free, or else the free GPUs
// with the lowest indices, are the best there are. Never left out are sets
// with NVLink between all GPUs, and the best of a size: they may be asked for
// by themselves.
//
// Of machines with more than 10 GPUs, and of sizes of which more than 80 sets
// would stay, at most 80 are returned: sets with NVLink between all GPUs, or of a
// size that has none the best, and of equally good ones such as are spread over all
// GPUs. Those of 4 and 8 are looked for among what two of the returned sets make.
func Sets(m *gpu.Machine) []Set {
	g := newGraph(m, func(int) bool { return true })
	if _, ok := g.singles(); ok {
		return nil
	}
	var groups [][]candidate
	var halves []candidate
	for _, size := range sizes(len(g.gpus)) {
		halves = g.ofSize(size, halves)
		groups = append(groups, halves)
	}
	slices.SortStableFunc(groups, func(a, b []candidate) int { return cmp.Compare(len(a), len(b)) })
	var out []Set
	for rank := 0; ; rank++ {
		before := len(out)
		for _, sets := range groups {
			if rank < len(sets) {
				out = append(out, g.set(sets[rank]))
			}
		}
		if len(out) == before {
			return out
		}
	}
}

// ofSize returns the sets of a size to publish, best first. halves are those of
// half the size.
func (g *graph) ofSize(size int, halves []candidate) []candidate {
	switch {
	case len(g.gpus) <= exactGPUs:
		if sets := kept(g.ranked(size), len(g.gpus)); len(sets) <= mostSets {
			return sets
		}
	case size == 2 || size == len(g.gpus):
		return g.bounded(g.ranked(size))
	}
	return g.bounded(g.doubled(halves))
}

func sizes(gpus int) []int {
	if gpus > 64 { // a mask has no more
		return nil
	}
	var out []int
	for _, size := range []int{2, 4, 8} {
		if size <= gpus {
			out = append(out, size)
		}
	}
	if gpus > 8 && gpus <= mostGPUs && bits.OnesCount(uint(gpus)) == 1 {
		out = append(out, gpus)
	}
	return out
}

// candidate is a set of GPUs and what it is ranked by.
type candidate struct {
	gpus     uint64 // bit i for position i
	min, sum int    // of the bandwidth of its pairs
	nvlink   int    // the smallest NVLink bandwidth
}

// ranked lists the sets of a size whose GPUs are of one model, best first.
func (g *graph) ranked(size int) []candidate {
	var out []candidate
	var choose func(chosen uint64, from, left int)
	choose = func(chosen uint64, from, left int) {
		if left == 0 {
			out = append(out, g.candidate(chosen))
			return
		}
		for i := from; i+left <= len(g.gpus); i++ {
			if chosen == 0 || g.gpus[i].Model == g.gpus[bits.TrailingZeros64(chosen)].Model {
				choose(chosen|1<<i, i+1, left-1)
			}
		}
	}
	choose(0, 0, size)
	rank(out)
	return out
}

// rank sorts sets of a size, best first.
func rank(sets []candidate) {
	slices.SortFunc(sets, func(a, b candidate) int {
		// The lower the indices, the larger the mask that is written lowest bit first.
		return cmp.Or(compare(a, b), cmp.Compare(bits.Reverse64(b.gpus), bits.Reverse64(a.gpus)))
	})
}

// compare is negative if a is better than b by their bandwidths, 0 if they are equal.
func compare(a, b candidate) int {
	return cmp.Or(cmp.Compare(b.min, a.min), cmp.Compare(b.sum, a.sum))
}

// model is the model of the set's GPUs.
func (g *graph) model(c candidate) string {
	return g.gpus[bits.TrailingZeros64(c.gpus)].Model
}

func (g *graph) candidate(gpus uint64) candidate {
	c := candidate{gpus: gpus, min: -1, nvlink: -1}
	members := positions(gpus)
	for i, a := range members {
		for _, b := range members[:i] {
			if c.min < 0 || g.gbps[a][b] < c.min {
				c.min = g.gbps[a][b]
			}
			if c.nvlink < 0 || g.nvlink[a][b] < c.nvlink {
				c.nvlink = g.nvlink[a][b]
			}
			c.sum += g.gbps[a][b]
		}
	}
	return c
}

// kept drops, of all sets of a size, ranked, those that can be done without. The
// machine has so many GPUs.
func kept(ranked []candidate, gpus int) []candidate {
	dropped := make([]bool, len(ranked))
	decided := freeGPUsByBest(ranked, gpus)
	// From the worst on: that a set can be dropped depends on worse ones.
	for i := len(ranked) - 1; i >= 0; i-- {
		best := ranked[i].min == ranked[0].min && ranked[i].sum == ranked[0].sum
		dropped[i] = !best && ranked[i].nvlink == 0 && !slices.ContainsFunc(decided[i], func(free uint64) bool {
			return missed(ranked, dropped, i, free)
		})
	}
	var out []candidate
	for i, c := range ranked {
		if !dropped[i] {
			out = append(out, c)
		}
	}
	return out
}

// freeGPUsByBest lists, for each of the ranked sets, the combinations of free
// GPUs of which it is the best set.
func freeGPUsByBest(ranked []candidate, gpus int) [][]uint64 {
	out := make([][]uint64, len(ranked))
	for free := range uint64(1) << gpus {
		i := slices.IndexFunc(ranked, func(c candidate) bool { return c.gpus&^free == 0 })
		if i >= 0 {
			out[i] = append(out[i], free)
		}
	}
	return out
}

// missed reports whether a claim would get something else than the set i, the best
// of these free GPUs, if it were dropped: a worse set that is not dropped, or
// single GPUs.
func missed(ranked []candidate, dropped []bool, i int, free uint64) bool {
	for j := i + 1; j < len(ranked); j++ {
		if !dropped[j] && ranked[j].gpus&^free == 0 {
			return true
		}
	}
	singles := uint64(0)
	for rest := free; bits.OnesCount64(singles) < bits.OnesCount64(ranked[i].gpus); rest &= rest - 1 {
		singles |= rest & -rest
	}
	return singles != ranked[i].gpus
}

func (g *graph) set(c candidate) Set {
	s := Set{NVLinkGBps: c.nvlink}
	for _, i := range positions(c.gpus) {
		s.GPUs = append(s.GPUs, g.gpus[i].Index)
	}
	return s
}
