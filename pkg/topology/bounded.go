// SPDX-License-Identifier: Apache-2.0

package topology

import "slices"

// doubled returns the sets, ranked, that two of these make which have one model and
// no GPU in common. Where all sets of a size are too many, these are looked at.
func (g *graph) doubled(halves []candidate) []candidate {
	var out []candidate
	known := map[uint64]bool{}
	for i, a := range halves {
		for _, b := range halves[:i] {
			gpus := a.gpus | b.gpus
			if a.gpus&b.gpus == 0 && g.model(a) == g.model(b) && !known[gpus] {
				known[gpus] = true
				out = append(out, g.candidate(gpus))
			}
		}
	}
	rank(out)
	return out
}

// bounded returns at most mostSets of the ranked sets of a size: the best of those
// with NVLink between all GPUs, or of all if there are none. Of equally good ones it
// takes those whose pairs of GPUs are in the fewest sets so far. So each part of the
// machine has sets, and few GPUs have to be free for one of them to be.
func (g *graph) bounded(ranked []candidate) []candidate {
	left := slices.DeleteFunc(slices.Clone(ranked), func(c candidate) bool { return c.nvlink == 0 })
	if len(left) == 0 {
		left = slices.Clone(ranked)
	}
	if len(left) <= mostSets {
		return left
	}
	var out []candidate
	combined := square(len(g.gpus)) // how many of the sets two GPUs are both in
	for len(out) < mostSets {
		next, fewest := 0, -1
		for i, c := range left {
			if compare(c, left[0]) > 0 {
				break
			}
			if n := pairs(combined, c); fewest < 0 || n < fewest {
				next, fewest = i, n
			}
		}
		out = append(out, left[next])
		for _, a := range positions(left[next].gpus) {
			for _, b := range positions(left[next].gpus) {
				combined[a][b]++
			}
		}
		left = slices.Delete(left, next, next+1)
	}
	rank(out)
	return out
}

// pairs sums what the matrix has of the set's GPUs.
func pairs(matrix [][]int, c candidate) int {
	n := 0
	members := positions(c.gpus)
	for _, a := range members {
		for _, b := range members {
			n += matrix[a][b]
		}
	}
	return n
}
