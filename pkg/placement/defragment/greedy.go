// SPDX-License-Identifier: Apache-2.0

package defragment

import (
	"cmp"
	"math"
	"slices"
)

// greedily makes the best move, again and again.
func (s *Search) greedily() []Move {
	for misses := 0; len(s.moves) < s.Most && misses < missesMost; {
		i, to, gain := s.bestMove()
		switch {
		case gain < max(s.Least, gainLeast):
			return s.moves
		case !s.move(i, to):
			s.missed(i, to)
			misses++
		default:
			misses = 0
		}
	}
	return s.moves
}

// missed notes that a node has no room for pods like this one.
func (s *Search) missed(i, to int) { s.pods[i].kind.saves[to].room = false }

// bestMove is the one that saves the most.
func (s *Search) bestMove() (best, to int, gain float64) {
	targets := map[*kind][2]int{}
	for _, k := range s.kinds {
		targets[k] = s.targets(k)
	}
	gain = math.Inf(-1)
	for i := range s.pods {
		p := &s.pods[i]
		if p.moved {
			continue
		}
		at := targets[p.kind][0]
		if at == p.Node {
			at = targets[p.kind][1]
		}
		if at < 0 {
			continue
		}
		if sum := s.going(i) + p.kind.saves[at].gain; sum > gain {
			best, to, gain = i, at, sum
		}
	}
	return best, to, gain
}

// targets are the two nodes that save the most if a pod of a kind comes, -1 for none.
func (s *Search) targets(k *kind) [2]int {
	best := [2]int{-1, -1}
	for i := range s.nodes {
		c := s.coming(k, i)
		switch {
		case !c.room:
		case best[0] < 0 || c.gain > k.saves[best[0]].gain:
			best[1], best[0] = best[0], i
		case best[1] < 0 || c.gain > k.saves[best[1]].gain:
			best[1] = i
		}
	}
	return best
}

// going is what a pod saves that leaves its node.
func (s *Search) going(i int) float64 {
	p := &s.pods[i]
	if version := s.nodes[p.Node].version; p.saves.version != version {
		p.saves = saving{version, true, s.lossOf(p.Node) - s.Index.LossOf(s.Without(i))}
	}
	return p.saves.gain
}

// coming is what a pod of a kind saves that comes to a node.
func (s *Search) coming(k *kind, i int) saving {
	c := &k.saves[i]
	if version := s.nodes[i].version; c.version != version {
		*c = saving{version: version}
		if after, room := s.Left(i).With(k.ask); room {
			c.room, c.gain = true, s.lossOf(i)-s.Index.LossOf(after)
		}
	}
	return *c
}

// clear finds the fewest moves of pods of one node that meet a goal: all that have some of a GPU go, those of the GPUs
// with the fewest pods first, and who need not go stays.
func (s *Search) clear(met func() bool) (best []Move) {
	for _, at := range s.byPods() {
		on := s.podsOn(at)
		for first := range on {
			s.play(nil)
			order := slices.Concat(on[first:first+1], on[:first], on[first+1:])
			moves := s.without(s.leave(slices.Concat(order...), met), met)
			if len(moves) > 0 && (best == nil || len(moves) < len(best)) {
				best = moves
			}
			if len(best) == 1 {
				return best
			}
			if len(moves) == 0 && len(s.moves) < s.Most {
				break // no order of its pods is better
			}
		}
	}
	return best
}

// byPods are the nodes with pods that may move, those with the fewest first.
func (s *Search) byPods() []int {
	number := map[int]int{}
	for i := range s.pods {
		number[s.pods[i].Node]++
	}
	var nodes []int
	for i := range s.nodes {
		if number[i] > 0 {
			nodes = append(nodes, i)
		}
	}
	slices.SortStableFunc(nodes, func(a, b int) int { return cmp.Compare(number[a], number[b]) })
	return nodes[:min(len(nodes), nodesMost)]
}

// podsOn are the pods on a node that may move, by GPU, of several with the first. The fewest come first.
func (s *Search) podsOn(at int) [][]int {
	byGPU := map[int][]int{}
	for i := range s.pods {
		if p := &s.pods[i]; p.Node == at && len(p.GPUs) > 0 {
			byGPU[p.GPUs[0]] = append(byGPU[p.GPUs[0]], i)
		}
	}
	var on [][]int
	for g := range s.Left(at).GPUs {
		if len(byGPU[g]) > 0 {
			on = append(on, byGPU[g])
		}
	}
	slices.SortStableFunc(on, func(a, b []int) int { return cmp.Compare(len(a), len(b)) })
	return on
}

// leave has pods go to the best nodes, one after the other, until the goal is met; nothing where it is not.
func (s *Search) leave(pods []int, met func() bool) []Move {
	for _, i := range pods {
		if len(s.moves) == s.Most {
			return nil
		}
		if s.goAway(i) && met() {
			return slices.Clone(s.moves)
		}
	}
	return nil
}

// goAway moves a pod to the node with room that saves the most.
func (s *Search) goAway(i int) bool {
	for range missesMost {
		k := s.pods[i].kind
		to := s.targets(k)
		at := to[0]
		if at == s.pods[i].Node {
			at = to[1]
		}
		if at < 0 {
			return false
		}
		if s.move(i, at) {
			return true
		}
		s.missed(i, at)
	}
	return false
}

// without leaves out the moves that are not needed.
func (s *Search) without(moves []Move, met func() bool) []Move {
	for i := len(moves) - 2; i >= 0; i-- {
		fewer := slices.Delete(slices.Clone(moves), i, i+1)
		if s.play(fewer); len(s.moves) == len(fewer) && met() {
			moves = fewer
		}
	}
	return moves
}
