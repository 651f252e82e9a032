// SPDX-License-Identifier: Apache-2.0

package preempt

import (
	"cmp"
	"math"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// candidate is a pod that may be evicted.
type candidate struct {
	// pods are the pod, or those of a gang together, which may be on other nodes, too.
	pods     []*corev1.Pod
	priority int32
	started  time.Time
	// budgets are the PodDisruptionBudgets that count the pod.
	budgets []int
	// kind is the same for pods of which it does not matter which goes, apart from their age;
	// empty for one that is like no other.
	kind string
	// more is how many other pods go with it, moreSum the sum of their priorities, none of which is
	// higher.
	more    int
	moreSum int64
}

// cost is what victims cost. Those of one node are compared with each other, and then the
// nodes. It is the order of the scheduler, which adds 2³¹ for each victim to the sum of their
// priorities, so that fewer victims have the lower sum.
type cost struct {
	// highest is the highest priority of a victim.
	highest int32
	count   int
	sum     int64
	// started is when the first of the victims with the highest priority was started.
	started time.Time
}

func (a cost) compare(b cost) int {
	return cmp.Or(cmp.Compare(a.highest, b.highest), cmp.Compare(a.count, b.count), cmp.Compare(a.sum, b.sum),
		b.started.Compare(a.started))
}

func costOf(candidates []candidate, victims []int) cost {
	var c cost
	for i, v := range victims {
		victim := candidates[v]
		c.count += 1 + victim.more
		c.sum += int64(victim.priority) + victim.moreSum
		switch {
		case i == 0 || victim.priority > c.highest:
			c.highest, c.started = victim.priority, victim.started
		case victim.priority == c.highest && victim.started.Before(c.started):
			c.started = victim.started
		}
	}
	return c
}

// least is a cost below which no victims among the candidates can be.
func least(candidates []candidate) cost {
	c := cost{highest: math.MaxInt32, count: 1}
	for _, candidate := range candidates {
		switch {
		case candidate.priority < c.highest:
			c.highest, c.started = candidate.priority, candidate.started
		case candidate.priority == c.highest && candidate.started.After(c.started):
			c.started = candidate.started
		}
	}
	c.sum = int64(c.highest)
	return c
}

// victimsMost is how many candidates are evicted for one. Where it would take more of the lowest
// priority that will do, nobody is.
const victimsMost = 32

// choose returns the candidates that cost the least of those without whom the pod fits; nothing
// if there are none. allowed is how many pods each budget lets go. fits is asked for victims,
// as indices in order; whoever fits without some fits without more. After so many questions
// and steps as tries says, it does with victims of whom none can be spared, which may be more
// than the fewest. Where victims are known that cost most, or nil, it does not look for any
// that certainly cost more.
func choose(
	candidates []candidate, allowed []int, tries int, most *cost, fits func(victims []int) bool,
) []int {
	s := search{candidates: candidates, allowed: allowed, left: tries, most: most, fits: fits}
	// The lowest priority first, and of one priority the youngest.
	for i, c := range candidates {
		if !slices.ContainsFunc(c.budgets, func(b int) bool { return allowed[b] <= 0 }) {
			s.order = append(s.order, i)
		}
	}
	slices.SortStableFunc(s.order, func(a, b int) int {
		x, y := candidates[a], candidates[b]
		return cmp.Or(cmp.Compare(x.priority, y.priority), cmp.Compare(x.more, y.more), cmp.Compare(x.kind, y.kind),
			y.started.Compare(x.started))
	})
	for n := range s.order {
		if n+1 < len(s.order) && candidates[s.order[n+1]].priority == candidates[s.order[n]].priority {
			continue
		}
		if most != nil && candidates[s.order[n]].priority > most.highest {
			return nil
		}
		// With all of these priorities, whatever the budgets say.
		if !s.asked(s.order[:n+1]) {
			continue
		}
		switch victims := s.fewest(n + 1); {
		case len(victims) > victimsMost:
			return nil
		case victims != nil:
			return victims
		}
	}
	return nil
}

type search struct {
	candidates []candidate
	allowed    []int
	order      []int
	// rest is how many pods those from a position on are.
	rest []int
	left int
	most *cost
	fits func(victims []int) bool
	best []int
}

func (s *search) asked(victims []int) bool {
	s.left--
	return s.fits(slices.Sorted(slices.Values(victims)))
}

// fewest searches among the first n in order, of which all together would do.
func (s *search) fewest(n int) []int {
	s.rest = make([]int, n+1)
	for i := n - 1; i >= 0; i-- {
		s.rest[i] = s.rest[i+1] + 1 + s.candidates[s.order[i]].more
	}
	for count := 1; count <= s.rest[0]; count++ {
		if s.most != nil && s.candidates[s.order[n-1]].priority == s.most.highest && count > s.most.count {
			return nil
		}
		if count > victimsMost {
			return s.spare(n)
		}
		s.best = nil
		s.combine(n, 0, count, nil, map[int]int{})
		if s.best != nil {
			return slices.Sorted(slices.Values(s.best))
		}
		if s.left <= 0 {
			return s.spare(n)
		}
	}
	return nil
}

// combine tries all sets of candidates that are so many more pods, from the one at a position on.
func (s *search) combine(n, from, more int, taken []int, used map[int]int) {
	if more == 0 {
		better := s.best == nil || costOf(s.candidates, taken).compare(costOf(s.candidates, s.best)) < 0
		if better && s.asked(taken) {
			s.best = slices.Clone(taken)
		}
		return
	}
	for i := from; i < n && s.rest[i] >= more && s.left > 0; i++ {
		s.left--
		if i > from && s.alike(i-1, i) {
			// A set with this one in the place of the one before costs no less.
			continue
		}
		size := 1 + s.candidates[s.order[i]].more
		if size > more || !s.take(s.order[i], used) {
			continue
		}
		s.combine(n, i+1, more-size, append(taken, s.order[i]), used)
		s.giveBack(s.order[i], used)
	}
}

func (s *search) alike(i, j int) bool {
	a, b := s.candidates[s.order[i]], s.candidates[s.order[j]]
	return a.kind != "" && a.kind == b.kind && a.priority == b.priority && slices.Equal(a.budgets, b.budgets)
}

// take counts a candidate against its budgets. It is false where one of them lets no more go.
func (s *search) take(c int, used map[int]int) bool {
	may := true
	for _, b := range s.candidates[c].budgets {
		used[b]++
		may = may && used[b] <= s.allowed[b]
	}
	if !may {
		s.giveBack(c, used)
	}
	return may
}

func (s *search) giveBack(c int, used map[int]int) {
	for _, b := range s.candidates[c].budgets {
		used[b]--
	}
}

// spare takes all of the first n that the budgets let go, and spares of them whom it can, the
// highest priority first.
func (s *search) spare(n int) []int {
	var victims []int
	used := map[int]int{}
	for _, c := range s.order[:n] {
		if s.take(c, used) {
			victims = append(victims, c)
		}
	}
	if !s.asked(victims) {
		return nil
	}
	for i := len(victims) - 1; i >= 0; i-- {
		if rest := slices.Delete(slices.Clone(victims), i, i+1); s.asked(rest) {
			victims = rest
		}
	}
	return slices.Sorted(slices.Values(victims))
}
