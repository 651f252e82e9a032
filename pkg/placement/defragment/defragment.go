// SPDX-License-Identifier: Apache-2.0

// Package defragment chooses pods with GPUs that should be on other nodes, so that what is free of the GPUs is of more
// use: to the pods that come, by the loss that package score counts, or to free a GPU, a node, or room for a pod. Moves
// are tried in a World, which knows what fits; each pod moves once, and each move finds room beside those before it. On
// small clusters all ways are tried. The package is pure.
package defragment

import (
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
	// gainLeast is what makes one loss less than another.
	gainLeast = 1e-6
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

	nodes []node
	kinds []*kind
	pods  []pod
	moves []Move
}

// node is a node with what is lost of it, as of a version.
type node struct {
	version, measured uint64
	loss              float64
}

// kind are pods that ask for the same, with what their coming would save by node.
type kind struct {
	ask   score.Ask
	saves []saving
}

// saving is one as of a version of the node; it is not there where the node has no room.
type saving struct {
	version uint64
	room    bool
	gain    float64
}

// pod is one of Pods, with what its going would save.
type pod struct {
	Pod
	kind  *kind
	saves saving
	moved bool
}

func (s *Search) begin() {
	s.nodes, s.pods, s.kinds, s.moves = make([]node, s.Nodes()), make([]pod, len(s.Pods)), nil, nil
	for i := range s.nodes {
		s.nodes[i].version = 1
	}
	for i, p := range s.Pods {
		k := slices.IndexFunc(s.kinds, func(k *kind) bool { return alike(&k.ask, &p.Ask) })
		if k < 0 {
			k = len(s.kinds)
			s.kinds = append(s.kinds, &kind{ask: p.Ask, saves: make([]saving, len(s.nodes))})
		}
		s.pods[i] = pod{Pod: p, kind: s.kinds[k]}
	}
}

func alike(a, b *score.Ask) bool {
	return a.CPU == b.CPU && a.Memory == b.Memory && slices.EqualFunc(a.Requests, b.Requests,
		func(x, y score.Request) bool {
			return x.Count == y.Count && x.Mode == y.Mode && x.Memory == y.Memory && x.Cores == y.Cores &&
				slices.Equal(x.Models, y.Models)
		})
}

// Spare finds the moves that save the most of what is lost, each the best one beside those before it. The World is left
// with them.
func (s *Search) Spare() []Move {
	s.begin()
	greedy := s.greedily()
	// A move counts as what it has to save.
	return s.better(greedy, func() value { return value{loss: s.loss() + s.Least*float64(len(s.moves))} })
}

// For finds the fewest moves that bring the goal about, and of those the moves that lose the least. The World is left
// with them; without any, it is as it was.
func (s *Search) For(goal Goal) []Move {
	s.begin()
	before := goal()
	found := s.clear(func() bool { return goal() > before })
	s.play(found)
	return s.better(found, func() value {
		if goal() <= before {
			return value{}
		}
		return value{met: true, moves: len(s.moves), loss: s.loss()}
	})
}

// value is that of moves: a goal that is met, then fewer moves, where there is one, then less loss.
type value struct {
	met   bool
	moves int
	loss  float64
}

func (a value) better(b value) bool {
	switch {
	case a.met != b.met:
		return a.met
	case a.met && a.moves != b.moves:
		return a.moves < b.moves
	}
	return a.loss < b.loss-gainLeast
}

// loss is what is lost of all nodes.
func (s *Search) loss() (sum float64) {
	for i := range s.nodes {
		sum += s.lossOf(i)
	}
	return sum
}

func (s *Search) lossOf(i int) float64 {
	n := &s.nodes[i]
	if n.measured != n.version {
		n.loss, n.measured = s.Index.LossOf(s.Left(i)), n.version
	}
	return n.loss
}

// move moves a pod, if the node has room.
func (s *Search) move(i, to int) bool {
	p := &s.pods[i]
	if p.moved || to == p.Node || !s.Move(i, to) {
		return false
	}
	p.moved, s.moves = true, append(s.moves, Move{i, to})
	s.changed(p.Node, to)
	return true
}

func (s *Search) undo() {
	last := s.moves[len(s.moves)-1]
	s.Undo()
	s.moves = s.moves[:len(s.moves)-1]
	s.pods[last.Pod].moved = false
	s.changed(s.pods[last.Pod].Node, last.Node)
}

func (s *Search) changed(nodes ...int) {
	for _, i := range nodes {
		s.nodes[i].version++
	}
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

// better are the moves if no others are worth more. All are tried where there are few enough, the fewest moves first.
func (s *Search) better(moves []Move, worth func() value) []Move {
	moves = slices.Clone(moves)
	best, left := worth(), triesMost
	if s.play(nil); len(moves) == 0 {
		best = worth()
	}
	for depth := 1; depth <= s.Most && !(best.met && best.moves < depth); depth++ {
		if !s.try(depth, &left, func() {
			if v := worth(); v.better(best) {
				best, moves = v, slices.Clone(s.moves)
			}
		}) {
			break
		}
	}
	s.play(moves)
	return moves
}

// try tries all ways to make so many moves; false where that are too many.
func (s *Search) try(depth int, left *int, see func()) bool {
	if depth == 0 {
		see()
		return true
	}
	if *left -= len(s.pods) * (len(s.nodes) - 1); *left < 0 {
		return false
	}
	for i := range s.pods {
		for to := range s.nodes {
			if !s.move(i, to) {
				continue
			}
			done := s.try(depth-1, left, see)
			if s.undo(); !done {
				return false
			}
		}
	}
	return true
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
