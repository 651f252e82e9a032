// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"math"
	"slices"
)

// fgd is the paper's policy: the node on which a pod adds the least fragments, for a mix that is known beforehand.
type fgd struct {
	typical []typical
	// scores has the scores found for kinds of pods, by node.
	scores map[*kind][]fgdScore
}

// typical is a kind of pods, and how frequent it is.
type typical struct {
	*kind
	weight float64
}

// fgdScore is a node's, with the GPU that a share gets there.
type fgdScore struct {
	known bool
	score float64
	gpu   int
}

// typicalOf are the most frequent kinds of a workload that make up so many percent of it.
func (w *workload) typicalOf(percent int, counts func(k *kind) bool) []typical {
	number, all, first := make([]int, len(w.kinds)), 0, map[string]*kind{}
	for _, k := range w.pods {
		if !counts(k) {
			continue
		}
		key := fmt.Sprint(k.cpu, k.gpus, k.share, k.models) // memory makes no difference
		if first[key] == nil {
			first[key] = k
		}
		number[first[key].number]++
		all++
	}
	kinds := slices.Clone(w.kinds)
	slices.SortStableFunc(kinds, func(a, b *kind) int { return number[b.number] - number[a.number] })
	var out []typical
	sum := 0
	for _, k := range kinds {
		if sum*100 >= percent*all {
			break
		}
		sum += number[k.number]
		out = append(out, typical{k, float64(number[k.number])})
	}
	for i := range out {
		out[i].weight /= float64(sum)
	}
	return out
}

// fragments are what typical pods cannot have of a node's free GPUs, on average. Pods without GPUs can have nothing.
func (n *node) fragments(pods []typical) float64 {
	sum := 0.0
	for _, t := range pods {
		if t.gpus == 0 || n.freeCPU < t.cpu || !n.hasGPUs(t.kind) {
			sum += t.weight * float64(n.free)
			continue
		}
		for _, rest := range n.rests {
			if rest < t.share {
				sum += t.weight * float64(rest)
			}
		}
	}
	return sum
}

func newFGD(w *workload) *fgd {
	return &fgd{typical: w.typicalOf(95, func(*kind) bool { return true }), scores: map[*kind][]fgdScore{}}
}

func (f *fgd) node(c *cluster, k *kind) int {
	scores := f.scores[k]
	if scores == nil {
		scores = make([]fgdScore, len(c.nodes))
		f.scores[k] = scores
	}
	first := newTies(nil)
	for i := range c.nodes {
		if !scores[i].known {
			scores[i] = f.score(&c.nodes[i], k)
		}
		if scores[i].score >= 0 {
			first.see(i, scores[i].score)
		}
	}
	return first.best
}

// score is how much less fragmented a node is with a pod, from 0 to 100; -1 if it has no room.
func (f *fgd) score(n *node, k *kind) fgdScore {
	if !n.fits(k) {
		return fgdScore{known: true, score: -1}
	}
	before, best := n.fragments(f.typical), fgdScore{known: true, score: -1}
	try := func(gpus ...int) {
		after := *n
		after.rests = slices.Clone(n.rests)
		after.freeCPU -= k.cpu
		for _, i := range gpus {
			after.rests[i] -= k.share
			after.free -= k.share
		}
		s := math.Trunc(100 / (1 + math.Exp(-(before-after.fragments(f.typical))/milli)))
		if s > best.score {
			best.score, best.gpu = s, -1
			if len(gpus) > 0 {
				best.gpu = gpus[0]
			}
		}
	}
	var fitting []int
	for i, rest := range n.rests {
		if rest >= k.share {
			fitting = append(fitting, i)
		}
	}
	if k.gpus != 1 {
		try(fitting[:k.gpus]...)
		return best
	}
	for i, gpu := range fitting {
		if !slices.ContainsFunc(fitting[:i], func(other int) bool { return n.rests[other] == n.rests[gpu] }) {
			try(gpu)
		}
	}
	return best
}

func (f *fgd) gpu(_ *cluster, at int, k *kind) int { return f.scores[k][at].gpu }

func (f *fgd) changed(_ *cluster, at int) {
	for _, scores := range f.scores {
		scores[at].known = false
	}
}
