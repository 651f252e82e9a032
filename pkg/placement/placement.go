// SPDX-License-Identifier: Apache-2.0

// Package placement decides to which of a node's GPUs the next claims go. The scheduler takes
// the first device that fits, so the order is most of it. A burst is allocated from one
// order, though: to spread it, a GPU offers no more than keeps the GPUs even, until the
// others have caught up. Amounts are in GiB units. The package is pure.
package placement

import (
	"cmp"
	"slices"
)

// GPU is how far a GPU is taken.
type GPU struct {
	Index int
	// Memory is all of it, Used what claims and others have of it.
	Memory, Used int64
	// Full says that it takes no further claim, however small.
	Full bool
}

// AsMemory is the same part of a GPU's memory, in GiB units, as percent of its compute.
func AsMemory(percent, units int64) int64 { return (percent*units + 99) / 100 }

// Packed is the order of binpack: the fullest GPU first, so that a claim goes to the fullest
// that has room for it. How full a GPU is is a part of its memory, as ACK's scheduler scores
// it; the lowest index wins a tie. Those that take no claim, which the scheduler passes over,
// are among the free ones, where they were before they were taken.
func Packed(gpus []GPU) []int {
	open := func(g GPU) GPU {
		if g.Full {
			g.Used = 0
		}
		return g
	}
	return order(gpus, func(a, b GPU) int { return fuller(open(b), open(a)) })
}

// Spread is the order of spread: the GPU of which the least is taken first, and those that
// take no claim last. The lowest index wins a tie.
func Spread(gpus []GPU) []int {
	return order(gpus, func(a, b GPU) int {
		switch {
		case a.Full == b.Full:
			return fuller(a, b)
		case b.Full:
			return -1
		default:
			return 1
		}
	})
}

// fuller compares the parts of their memory that are taken, without division.
func fuller(a, b GPU) int { return cmp.Compare(a.Used*b.Memory, b.Used*a.Memory) }

func order(gpus []GPU, compare func(a, b GPU) int) []int {
	sorted := slices.SortedFunc(slices.Values(gpus), func(a, b GPU) int {
		return cmp.Or(compare(a, b), cmp.Compare(a.Index, b.Index))
	})
	indices := make([]int, len(sorted))
	for i, g := range sorted {
		indices[i] = g.Index
	}
	return indices
}
