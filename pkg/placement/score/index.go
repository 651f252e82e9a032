// SPDX-License-Identifier: Apache-2.0

package score

import (
	"iter"
	"math"
	"slices"
)

// Setting is how nodes are ranked for a pod, by the names that users know.
type Setting string

const (
	// Best leaves the most room for the pods that come after.
	Best Setting = "best"
	// Binpack takes the node of whose GPUs the largest part is taken then, the best of equal ones.
	Binpack Setting = "binpack"
	// Spread takes the one of whose GPUs the smallest part is.
	Spread Setting = "spread"
)

// Known reports whether there is such a setting.
func (s Setting) Known() bool { return s == Best || s == Binpack || s == Spread }

// A GPU that is stranded counts 1. The others are weights of a GPU of a scarce model that is taken, of one that nobody
// can have on average, and of one that is left free on the node: without the last, pods that come and go spread over
// all nodes, and large ones find none. docs/internals/results/2026-11-29-placement.md has what they bring.
const scarceWeight, fragmentsWeight, freeWeight = 0.5, 0.1, 0.05

// Index keeps the scores of a cluster's nodes. It is for one goroutine at a time. What it answers depends on the nodes,
// and on the pods that it learned in their order, not on the order in which nodes came.
type Index struct {
	nodes  []entry
	at     map[string]int
	mix    mix
	stocks stocks
	demand demand
	// stale reports that demand is not that of mix and stocks.
	stale bool
	// version counts changes, demanded is that of the last change of demand, which is one of all nodes.
	version, demanded uint64
	// after, places and ranks are for what is calculated of one question.
	after  Node
	places places
	ranks  []float64
}

// entry is a node as it was left by its last change. It costs so much without another pod, as of version measured.
type entry struct {
	name              string
	node              Node
	changed, measured uint64
	cost              float64
}

// Kind are pods that ask for the same, with the scores of an Index's nodes for them: 24 KB with 1,000 nodes. It is for
// one Index.
type Kind struct {
	Ask
	scores []scored
}

// scored is a node's score, and how much of its GPUs is taken with the pod. It is -Inf where the pod does not fit.
type scored struct {
	version      uint64
	score, taken float64
}

// New makes an Index of no nodes that has learned nothing.
func New() *Index { return &Index{at: map[string]int{}, stocks: stocks{}} }

// Set is what is left of a node now. A caller that has given something away by itself counts that in (With).
func (x *Index) Set(name string, n Node) {
	i, is := x.at[name]
	if !is {
		i = len(x.nodes)
		x.at[name], x.nodes = i, append(x.nodes, entry{name: name})
	}
	e := &x.nodes[i]
	if is && e.node.CPU == n.CPU && e.node.Memory == n.Memory && slices.Equal(e.node.GPUs, n.GPUs) {
		return
	}
	if !slices.EqualFunc(e.node.GPUs, n.GPUs, sameGPU) {
		x.count(e.node.GPUs, -1)
		x.count(n.GPUs, 1)
	}
	x.version++
	e.node, e.changed = Node{n.CPU, n.Memory, slices.Clone(n.GPUs)}, x.version
}

// sameGPU reports whether both are the same GPU, as far as it matters here, whatever is left of it.
func sameGPU(a, b GPU) bool { return a.Model == b.Model && a.Memory == b.Memory }

// count adds GPUs to those of the cluster, or takes them away.
func (x *Index) count(gpus []GPU, times int64) {
	for i := range gpus {
		has := x.stocks[gpus[i].Model]
		has.gpus += times
		has.memory += times * gpus[i].Memory
		x.stocks[gpus[i].Model] = has
	}
	x.stale = true
}

// Delete forgets a node.
func (x *Index) Delete(name string) {
	i, is := x.at[name]
	if !is {
		return
	}
	x.count(x.nodes[i].node.GPUs, -1)
	last := len(x.nodes) - 1
	x.version++
	x.nodes[i] = x.nodes[last]
	x.nodes[i].changed = x.version // scores are kept by place
	x.at[x.nodes[i].name] = i
	x.nodes = x.nodes[:last]
	delete(x.at, name)
}

// Learn has what one more pod with GPUs asks for count among what the next ones will ask for. After a restart the pods
// that are bound to nodes, the oldest first, teach nearly all that was known.
func (x *Index) Learn(a Ask) {
	if x.mix.learn(learned{askKey(&a), a}) {
		x.stale = true
	}
}

// Best yields the nodes that have room for a pod of a kind, in the order of their scores; which of equal ones comes
// next, tie(how many) decides. The Index must not be used before the sequence has ended.
func (x *Index) Best(k *Kind, s Setting, tie func(n int) int) iter.Seq[string] {
	return func(yield func(string) bool) {
		ranks := x.rank(k, s)
		for {
			most, equal := math.Inf(-1), 0
			for _, rank := range ranks {
				switch {
				case rank > most:
					most, equal = rank, 1
				case rank == most:
					equal++
				}
			}
			if math.IsInf(most, -1) {
				return
			}
			i := slices.Index(ranks, most)
			for n := tie(equal); n > 0; n-- {
				i += 1 + slices.Index(ranks[i+1:], most)
			}
			ranks[i] = math.Inf(-1)
			if !yield(x.nodes[i].name) {
				return
			}
		}
	}
}

// takenWeight has the part of a node's GPUs that is taken decide, and the score among equal ones alone.
const takenWeight = 1e6

// rank is how nodes rank for pods of a kind, the highest first.
func (x *Index) rank(k *Kind, s Setting) []float64 {
	x.renew()
	if missing := len(x.nodes) - len(k.scores); missing > 0 {
		k.scores = append(k.scores, make([]scored, missing)...)
	}
	x.ranks = x.ranks[:0]
	for i := range x.nodes {
		e, of := &x.nodes[i], &k.scores[i]
		if version := max(e.changed, x.demanded); of.version != version {
			*of = x.score(e, &k.Ask, version)
		}
		rank := of.score
		switch s {
		case Binpack:
			rank += takenWeight * of.taken
		case Spread:
			rank -= takenWeight * of.taken
		}
		x.ranks = append(x.ranks, rank)
	}
	return x.ranks
}

// renew has demand be that of mix and stocks.
func (x *Index) renew() {
	if x.stale {
		x.version++
		x.demand, x.demanded, x.stale = demandOf(x.mix.typical, x.stocks), x.version, false
	}
}

// score is that of a node for a pod.
func (x *Index) score(e *entry, a *Ask, version uint64) scored {
	if !e.node.mayFit(a) {
		return scored{version: version, score: math.Inf(-1)}
	}
	x.after.GPUs = append(x.after.GPUs[:0], e.node.GPUs...)
	if !e.node.with(*a, &x.after) {
		return scored{version: version, score: math.Inf(-1)}
	}
	if e.measured != version {
		e.cost, _ = x.demand.cost(e.node, &x.places)
		e.measured = version
	}
	cost, free := x.demand.cost(x.after, &x.places)
	of := scored{version: version, score: e.cost - cost - freeWeight*free}
	for i := range e.node.GPUs {
		before, after := &e.node.GPUs[i], &x.after.GPUs[i]
		if scarce := x.demand.scarce[before.Model]; scarce > 0 {
			of.score -= scarceWeight * scarce * (before.rest() - after.rest())
		}
	}
	if gpus := len(e.node.GPUs); gpus > 0 {
		of.taken = 1 - free/float64(gpus)
	}
	return of
}
