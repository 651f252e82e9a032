// SPDX-License-Identifier: Apache-2.0

// Package defragment chooses pods with GPUs that should be on other nodes, so that what is free of the GPUs is of more
// use: to the pods that come, by the loss that package score counts, or to free a GPU, a node, or room for a pod. Moves
// are tried in a World, which knows what fits; each pod moves once, and each move finds room beside those before it. On
// small clusters all ways are tried. The package is pure.
package defragment

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"

	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
	"github.com/gpushare/dra-driver-gpushare/pkg/placement/score"
)

// World is a cluster in which moves are tried. Nodes and pods are numbers.
type World interface {
	Nodes() int
	// Left is what is left of a node, Without what would be without a pod of its own.
	Left(node int) score.Node
	Without(pod int) score.Node
	// Move moves a pod, and reports whether the node had room for it. Undo takes back the last move that had.
	Move(pod, node int) bool
	Undo()
}

// Pod is one that may move.
type Pod struct {
	Node int
	Ask  score.Ask
	// GPUs are those of the node that it has a part of.
	GPUs []int
}

// Move is a pod that goes to another node.
type Move struct{ Pod, Node int }

// Goal counts what moves are to bring about, and needs more of.
type Goal func() int

const (
	// gainLeast is what makes one loss less than another, goalMove more than can be lost: where there is a goal, fewer
	// moves come first.
	gainLeast = 1e-6
	goalMove  = 1e6
	// missesMost is how many moves are tried in vain before a search ends, nodesMost how many nodes' pods are tried for a
	// goal, and triesMost how many moves where all ways are tried.
	missesMost, nodesMost, triesMost = 100, 25, 2000
)

// Search looks for moves.
type Search struct {
	World
	Pods []Pod
	// Index has learned what pods ask for.
	Index *score.Index
	// Most is how many moves there are at most, Least what each saves of a GPU at least, if it is for nothing else.
	Most  int
	Least float64

	// lost is what is lost of each node, on are the pods that were on it; all of Pods are those of every node.
	lost  []float64
	on    map[int][]int
	all   []int
	pods  []pod
	kinds map[string]*kind
	moves []Move
}

// kind are pods that ask for the same, with what it saves, by node, if one comes: -Inf where the node has no room.
type kind struct {
	ask   score.Ask
	saves []float64
}

// pod is one of Pods, with what it saves if it goes.
type pod struct {
	*kind
	saves float64
	moved bool
}

func (s *Search) begin() {
	s.lost, s.on, s.all, s.moves = make([]float64, s.Nodes()), map[int][]int{}, nil, nil
	s.pods, s.kinds = make([]pod, len(s.Pods)), map[string]*kind{}
	for i := range s.Pods {
		p := &s.Pods[i]
		id := fmt.Sprintf("%#v", p.Ask)
		if s.kinds[id] == nil {
			s.kinds[id] = &kind{p.Ask, make([]float64, len(s.lost))}
		}
		s.pods[i].kind, s.all, s.on[p.Node] = s.kinds[id], append(s.all, i), append(s.on[p.Node], i)
	}
	for node := range s.lost {
		s.forget(node)
	}
}

// forget has all that is known of a node be found out again: NaN is for what is not known.
func (s *Search) forget(node int) {
	s.lost[node] = math.NaN()
	for _, k := range s.kinds {
		k.saves[node] = math.NaN()
	}
	for _, i := range s.on[node] {
		s.pods[i].saves = math.NaN()
	}
}

// Spare finds the moves that save the most of what is lost, each the best one beside those before it. The World is left
// with them.
func (s *Search) Spare() []Move {
	s.begin()
	s.moveBest(s.all, max(s.Least, gainLeast), func() bool { return false })
	// A move counts as what it has to save.
	return s.better(s.Least, func() bool { return true })
}

// For finds the fewest moves that bring the goal about, and of those the moves that lose the least. The World is left
// with them; without any, it is as it was.
func (s *Search) For(goal Goal) []Move {
	s.begin()
	before := goal()
	met := func() bool { return goal() > before }
	s.play(s.clear(met))
	return s.better(goalMove, met)
}

// move moves a pod, if the node has room.
func (s *Search) move(i, to int) bool {
	if s.pods[i].moved || to == s.Pods[i].Node || !s.Move(i, to) {
		return false
	}
	s.pods[i].moved, s.moves = true, append(s.moves, Move{i, to})
	s.forget(s.Pods[i].Node)
	s.forget(to)
	return true
}

func (s *Search) undo() {
	last := s.moves[len(s.moves)-1]
	s.Undo()
	s.moves, s.pods[last.Pod].moved = s.moves[:len(s.moves)-1], false
	s.forget(s.Pods[last.Pod].Node)
	s.forget(last.Node)
}

// play has the World be with these moves, and no others.
func (s *Search) play(moves []Move) {
	for len(s.moves) > 0 {
		s.undo()
	}
	for _, m := range moves {
		s.move(m.Pod, m.Node)
	}
}

// better are the moves that were made if no others are cheaper: by what is lost then, and so much for each. All are
// tried where there are few enough, the fewest first.
func (s *Search) better(each float64, met func() bool) []Move {
	best, cheapest, left := slices.Clone(s.moves), math.Inf(1), triesMost
	see := func() {
		if !met() {
			return
		}
		cost := each * float64(len(s.moves))
		for node := range s.lost {
			cost += s.lossOf(node)
		}
		if cost < cheapest-gainLeast {
			best, cheapest = slices.Clone(s.moves), cost
		}
	}
	// try makes so many moves in all ways; false where that are too many.
	var try func(depth int) bool
	try = func(depth int) bool {
		if depth == 0 {
			see()
			return true
		}
		if left -= len(s.pods) * (len(s.lost) - 1); left < 0 {
			return false
		}
		for i := range s.pods {
			for to := range s.lost {
				if !s.move(i, to) {
					continue
				}
				done := try(depth - 1)
				if s.undo(); !done {
					return false
				}
			}
		}
		return true
	}
	see()
	s.play(nil)
	for depth := 1; depth <= s.Most && each*float64(depth) < cheapest && try(depth); {
		depth++
	}
	s.play(best)
	return best
}

// clear finds the fewest moves of pods of one node that meet a goal: all that have some of a GPU go, those of the GPUs
// with the fewest pods first, and who need not go stays.
func (s *Search) clear(met func() bool) (best []Move) {
	byPods := slices.SortedFunc(maps.Keys(s.on), func(a, b int) int {
		return cmp.Or(cmp.Compare(len(s.on[a]), len(s.on[b])), cmp.Compare(a, b))
	})
	for _, node := range byPods[:min(len(byPods), nodesMost)] {
		s.play(nil)
		byGPU := map[int][]int{}
		for _, i := range s.on[node] {
			if gpus := s.Pods[i].GPUs; len(gpus) > 0 {
				byGPU[gpus[0]] = append(byGPU[gpus[0]], i)
			}
		}
		enough := func(pods []int) bool { return s.moveBest(pods, -math.MaxFloat64, met) }
		if slices.ContainsFunc(slices.SortedFunc(maps.Values(byGPU), func(a, b []int) int {
			return cmp.Or(cmp.Compare(len(a), len(b)), cmp.Compare(a[0], b[0]))
		}), enough) {
			if moves := s.needed(met); best == nil || len(moves) < len(best) {
				best = moves
			}
		}
		if len(best) == 1 {
			break
		}
	}
	return best
}

// needed leaves out the moves without which a goal is met, too.
func (s *Search) needed(met func() bool) []Move {
	moves := slices.Clone(s.moves)
	for i := len(moves) - 2; i >= 0; i-- {
		fewer := slices.Delete(slices.Clone(moves), i, i+1)
		if s.play(fewer); len(s.moves) == len(fewer) && met() {
			moves = fewer
		}
	}
	return moves
}

// moveBest makes the best moves of these pods, one after the other, each of which saves so much, until they are enough.
func (s *Search) moveBest(among []int, least float64, enough func() bool) bool {
	for misses := 0; len(s.moves) < s.Most && misses < missesMost; {
		i, to, gain := s.best(among)
		switch {
		case gain < least:
			return false
		case !s.move(i, to):
			s.pods[i].kind.saves[to] = math.Inf(-1)
			misses++
		case enough():
			return true
		default:
			misses = 0
		}
	}
	return false
}

// best is the move of these pods that saves the most; it saves -Inf where there is none.
func (s *Search) best(among []int) (best, to int, gain float64) {
	targets := map[*kind][2]int{}
	gain = math.Inf(-1)
	for _, i := range among {
		p := &s.pods[i]
		if p.moved {
			continue
		}
		nodes, known := targets[p.kind]
		if !known {
			nodes = s.targets(p.kind)
			targets[p.kind] = nodes
		}
		at := nodes[0]
		if at == s.Pods[i].Node {
			at = nodes[1]
		}
		if at < 0 {
			continue
		}
		if math.IsNaN(p.saves) {
			p.saves = s.lossOf(s.Pods[i].Node) - s.Index.LossOf(s.Without(i))
		}
		if sum := p.saves + p.kind.saves[at]; sum > gain {
			best, to, gain = i, at, sum
		}
	}
	return best, to, gain
}

// targets are the two nodes that save the most if a pod of a kind comes, -1 for none.
func (s *Search) targets(k *kind) [2]int {
	best, gains := [2]int{-1, -1}, [2]float64{math.Inf(-1), math.Inf(-1)}
	for node := range k.saves {
		if math.IsNaN(k.saves[node]) {
			k.saves[node] = math.Inf(-1)
			if after, room := s.Left(node).With(k.ask); room {
				k.saves[node] = s.lossOf(node) - s.Index.LossOf(after)
			}
		}
		switch gain := k.saves[node]; {
		case gain > gains[0]:
			best, gains = [2]int{node, best[0]}, [2]float64{gain, gains[0]}
		case gain > gains[1]:
			best[1], gains[1] = node, gain
		}
	}
	return best
}

// lossOf is what is lost of a node.
func (s *Search) lossOf(node int) float64 {
	if math.IsNaN(s.lost[node]) {
		s.lost[node] = s.Index.LossOf(s.Left(node))
	}
	return s.lost[node]
}

// FreeGPUs is how many GPUs of a node nobody has any of.
func FreeGPUs(n score.Node) (free int) {
	for i := range n.GPUs {
		if g := &n.GPUs[i]; g.Modes != 0 && g.Free == g.Memory && g.Cores == gpu.WholeCores {
			free++
		}
	}
	return free
}

// GPUs is the goal of one more GPU that nobody has any of, and a free node of one with no other GPUs.
func GPUs(w World) Goal {
	return func() (sum int) {
		for i := range w.Nodes() {
			sum += FreeGPUs(w.Left(i))
		}
		return sum
	}
}

// FreeNodes is the goal of one more node of whose GPUs nobody has any.
func FreeNodes(w World) Goal {
	return func() (sum int) {
		for i := range w.Nodes() {
			if n := w.Left(i); len(n.GPUs) > 0 && FreeGPUs(n) == len(n.GPUs) {
				sum++
			}
		}
		return sum
	}
}
