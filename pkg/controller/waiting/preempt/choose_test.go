// SPDX-License-Identifier: Apache-2.0

package preempt

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
)

// gpus are GPUs of which candidates hold amounts: held[i] is what the i-th candidate holds, by
// GPU. Those with the same owner hold it together.
type gpus struct {
	size, need int
	// count is on how many GPUs there has to be need.
	count int
	held  []map[int]int
	group []int
}

// fits reports whether so much is free on so many GPUs without the victims. What several hold
// together is free when none of them is left.
func (g gpus) fits(victims []int) bool {
	free := map[int]int{}
	for gpu := range g.size {
		free[gpu] = 10
	}
	staying := map[int]bool{}
	for i := range g.held {
		if !slices.Contains(victims, i) {
			staying[g.group[i]] = true
		}
	}
	counted := map[int]bool{}
	for i, held := range g.held {
		if !staying[g.group[i]] || counted[g.group[i]] {
			continue
		}
		counted[g.group[i]] = true
		for gpu, amount := range held {
			free[gpu] -= amount
		}
	}
	n := 0
	for _, amount := range free {
		if amount >= g.need {
			n++
		}
	}
	return n >= g.count
}

// random is a small situation.
func random(r *rand.Rand) (gpus, []candidate, []int) {
	g := gpus{size: 1 + r.IntN(3), need: 1 + r.IntN(10)}
	g.count = 1 + r.IntN(g.size)
	allowed := []int{r.IntN(3), r.IntN(3)}
	var candidates []candidate
	for i := range r.IntN(8) {
		c := candidate{priority: int32(r.IntN(3)) - 1, started: time.Unix(int64(r.IntN(4)), 0)}
		if r.IntN(3) == 0 {
			c.budgets = []int{r.IntN(2)}
		}
		if r.IntN(5) == 0 {
			c.more = 1 + r.IntN(2)
			c.moreSum = int64(c.more) * int64(c.priority)
			if len(c.budgets) > 0 && r.IntN(2) == 0 {
				c.budgets = append(c.budgets, c.budgets[0])
			}
		}
		gpu, amount := r.IntN(g.size), 1+r.IntN(6)
		held, group := map[int]int{gpu: amount}, i
		if i > 0 && r.IntN(5) == 0 {
			// It shares what an earlier one holds: none is like another.
			group = g.group[r.IntN(i)]
			held = g.held[group]
			candidates[group].kind = ""
		} else if c.more == 0 {
			c.kind = fmt.Sprint(gpu, " ", amount)
		}
		g.held, g.group, candidates = append(g.held, held), append(g.group, group), append(candidates, c)
	}
	return g, candidates, allowed
}

// byForce tries all sets of candidates.
func byForce(g gpus, candidates []candidate, allowed []int) []int {
	var best []int
	for set := 1; set < 1<<len(candidates); set++ {
		var victims []int
		used := make([]int, len(allowed))
		for i, c := range candidates {
			if set&(1<<i) == 0 {
				continue
			}
			victims = append(victims, i)
			for _, b := range c.budgets {
				used[b]++
			}
		}
		if used[0] > allowed[0] || used[1] > allowed[1] || !g.fits(victims) {
			continue
		}
		if best == nil || costOf(candidates, victims).compare(costOf(candidates, best)) < 0 {
			best = victims
		}
	}
	return best
}

func TestVictimsAreTheFewestAndLowest(t *testing.T) {
	found, several, none := 0, 0, 0
	for seed := range uint64(3000) {
		g, candidates, allowed := random(rand.New(rand.NewPCG(seed, 0)))
		if g.fits(nil) {
			continue
		}
		got, want := choose(candidates, allowed, 1_000_000, nil, g.fits), byForce(g, candidates, allowed)
		if (got == nil) != (want == nil) ||
			got != nil && costOf(candidates, got).compare(costOf(candidates, want)) != 0 || got != nil && !g.fits(got) {
			t.Fatalf("seed %d: victims %v, by force %v of %+v, budgets %v, %+v", seed, got, want, candidates, allowed, g)
		}
		// Where others have victims that cost no more, those of this node do not matter.
		most := cost{highest: int32(seed%4) - 1, count: 1 + int(seed)%3, sum: int64(seed % 5)}
		bounded := choose(candidates, allowed, 1_000_000, &most, g.fits)
		if want != nil && costOf(candidates, want).compare(most) < 0 &&
			(bounded == nil || costOf(candidates, bounded).compare(costOf(candidates, want)) != 0) {
			t.Fatalf("seed %d: victims %v, by force %v, which cost less than %+v", seed, bounded, want, most)
		}
		switch {
		case got == nil:
			none++
		case len(got) > 1:
			several++
		}
		found++
		// Without time for a search nobody goes in vain, either.
		hasty := choose(candidates, allowed, 0, nil, g.fits)
		if hasty == nil {
			continue
		}
		used := make([]int, len(allowed))
		for i, v := range hasty {
			if g.fits(slices.Delete(slices.Clone(hasty), i, i+1)) {
				t.Fatalf("seed %d: of the victims %v found in haste, %d is evicted in vain", seed, hasty, v)
			}
			for _, b := range candidates[v].budgets {
				used[b]++
			}
		}
		if !g.fits(hasty) || used[0] > allowed[0] || used[1] > allowed[1] {
			t.Fatalf("seed %d: the victims %v found in haste do not do, or budgets keep them", seed, hasty)
		}
	}
	if found < 300 || several < 100 || none < 50 {
		t.Errorf("%d situations, %d with several victims, %d with none: the test shows little", found, several, none)
	}
}

func TestOrderOfVictims(t *testing.T) {
	at := func(second int64) time.Time { return time.Unix(second, 0) }
	// Each candidate holds a GPU of its own, and any one GPU will do.
	one := func(victims []int) bool { return len(victims) >= 1 }
	for name, test := range map[string]struct {
		candidates []candidate
		fits       func([]int) bool
		want       []int
	}{
		"nobody":         {nil, one, nil},
		"the lowest":     {[]candidate{{priority: 5}, {priority: -5}, {priority: 0}}, one, []int{1}},
		"the youngest":   {[]candidate{{started: at(5)}, {started: at(9)}, {started: at(7)}}, one, []int{1}},
		"lowest first":   {[]candidate{{priority: 1, started: at(9)}, {started: at(1)}}, one, []int{1}},
		"not budgeted":   {[]candidate{{budgets: []int{0}}, {priority: 5}}, one, []int{1}},
		"budgeted":       {[]candidate{{budgets: []int{1}}, {priority: 5}}, one, []int{0}},
		"all are needed": {[]candidate{{}, {}, {}}, func(v []int) bool { return len(v) == 3 }, []int{0, 1, 2}},
		"not all may go": {[]candidate{{budgets: []int{1}}, {budgets: []int{1}}}, func(v []int) bool { return len(v) == 2 },
			nil},
		"three low ones rather than one high one": {
			[]candidate{{priority: 9}, {}, {}, {}},
			func(v []int) bool { return slices.Contains(v, 0) || len(v) == 3 }, []int{1, 2, 3}},
		"one rather than two of that priority": {
			[]candidate{{}, {}, {}}, func(v []int) bool { return slices.Contains(v, 2) || len(v) == 2 }, []int{2}},
		"nothing helps": {[]candidate{{}, {}}, func([]int) bool { return false }, nil},
	} {
		t.Run(name, func(t *testing.T) {
			got := choose(test.candidates, []int{0, 1}, 1000, nil, test.fits)
			expect.Equal(t, test.want, got, "victims")
		})
	}
}

// A GPU with many small shares is no reason to search for long.
func TestSearchIsBounded(t *testing.T) {
	for _, alike := range []bool{true, false} {
		var candidates []candidate
		for i := range 160 {
			c := candidate{kind: fmt.Sprint("GPU ", i%8), started: time.Unix(int64(i), 0)}
			if !alike {
				c.kind = ""
			}
			candidates = append(candidates, c)
		}
		asked := 0
		// Five of one GPU.
		got := choose(candidates, nil, triesMost, nil, func(victims []int) bool {
			asked++
			of := map[int]int{}
			for _, v := range victims {
				if of[v%8]++; of[v%8] == 5 {
					return true
				}
			}
			return false
		})
		if asked > triesMost+200 {
			t.Errorf("alike %t: asked %d times", alike, asked)
		}
		expect.Equal(t, 5, len(got), "alike %t: victims %v", alike, got)
	}
}

// What costs more than the victims of another node is not looked for.
func TestSearchEndsAtTheBestOfOthers(t *testing.T) {
	var candidates []candidate
	for i := range 10 {
		candidates = append(candidates, candidate{priority: int32(i)}, candidate{priority: int32(i)})
	}
	for name, test := range map[string]struct {
		most  cost
		fits  func(victims []int) bool
		asked int
	}{
		"higher ones": {cost{highest: 2, count: 1}, func(v []int) bool { return slices.Contains(v, 19) }, 3},
		// All of them, and one after the other.
		"more of them": {cost{highest: 0, count: 1}, func(v []int) bool { return len(v) == 2 }, 3},
	} {
		asked := 0
		got := choose(candidates, nil, triesMost, &test.most, func(victims []int) bool {
			asked++
			return test.fits(victims)
		})
		if got != nil || asked > test.asked {
			t.Errorf("%s: victims %v after %d questions, want none after %d", name, got, asked, test.asked)
		}
	}
}

// A pod with a hundred victims is rather one that waits.
func TestVictimsAreNotTooMany(t *testing.T) {
	for _, alike := range []bool{true, false} {
		candidates := []candidate{{priority: 5}}
		for i := range 40 {
			c := candidate{started: time.Unix(int64(i), 0)}
			if alike {
				c.kind = "alike"
			}
			candidates = append(candidates, c)
		}
		for need, want := range map[int]int{victimsMost: victimsMost, victimsMost + 1: 0, 100: 1} {
			got := choose(candidates, nil, triesMost, nil, func(victims []int) bool {
				return len(victims) >= need || need == 100 && slices.Contains(victims, 0)
			})
			expect.Equal(t, want, len(got), "alike %t, %d needed: victims", alike, need)
		}
	}
}
