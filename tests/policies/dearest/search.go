// SPDX-License-Identifier: Apache-2.0

package main

import (
	"math/rand/v2"
	"slices"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/dynamic-resource-allocation/deviceclass/extendedresourcecache"
)

// found is a candidate that is admitted, and what it costs on a node.
type found struct {
	candidate *candidate
	target    *target
	cost      cost
	// seed and try say which run found it, and when.
	seed uint64
	try  int
}

// search looks for the dearest pods that a server admits. With the same seed and a number of tries it is the
// same again,
// as long as what it finds is counted: see cost.took.
type search struct {
	server  *server
	limits  *limits
	targets []*target
	kinds   kinds
	labels  []string
	seed    uint64
	// until is when it ends; tries likewise, if there is no time.
	until time.Time
	tries int
	// most is the work after which a try is ended.
	most time.Duration

	random *rand.Rand
	made   map[*target]*resources
	// best is the dearest on each node, top the dearest of all.
	best map[*target]*found
	top  []*found
	// tried is how many there were, admittedCount how many of them were admitted.
	tried, admittedCount int
	// gate reports whether pods with such claims may go to a node; nil holds none.
	gate func(*target, []*resourceapi.ResourceClaim) bool
	// refusals counts what the others were refused for.
	refusals map[string]int
	skipped  int
}

// resources are the names by which containers ask for devices of a target's classes.
type resources struct {
	names   []string
	classes *extendedresourcecache.ExtendedResourceCache
}

// patience is how many tries in a row may be no dearer before a climb ends, and keep how many of the
// dearest are kept.
const (
	patience = 40
	keep     = 40
)

func (s *search) run(report func(*found)) {
	s.random = rand.New(rand.NewPCG(s.seed, 1))
	s.best, s.refusals, s.made = map[*target]*found{}, map[string]int{}, map[*target]*resources{}
	order := s.random.Perm(len(s.targets))
	for climb := 0; !s.over(); climb++ {
		t := s.targets[order[climb%len(order)]]
		// Where everything is lost already there is little to be found.
		if of := s.best[t]; of != nil && of.cost.ended && s.random.IntN(10) > 0 {
			s.skipped++
			if s.skipped > 100*len(order) {
				return
			}
			continue
		}
		s.skipped = 0
		s.climb(t, report)
	}
}

func (s *search) over() bool {
	if s.tries > 0 && s.tried >= s.tries {
		return true
	}
	return !s.until.IsZero() && time.Now().After(s.until)
}

// climb begins somewhere and goes to what is dearer, step by step, until it gets no further.
func (s *search) climb(t *target, report func(*found)) {
	if s.made[t] == nil {
		s.made[t] = &resources{names: resourceNames(t.classes), classes: classesByResource(t.classes)}
	}
	m := &changer{random: s.random, words: t.words, resources: s.made[t].names, kinds: s.kinds, labels: s.labels}
	at := &found{candidate: m.start(), target: t}
	switch of := s.best[t]; {
	case len(s.top) > 0 && s.random.IntN(3) == 0:
		at.candidate = s.top[s.random.IntN(len(s.top))].candidate
	case of != nil && s.random.IntN(3) == 0:
		at.candidate = of.candidate
	case len(s.top) > 1 && s.random.IntN(8) == 0:
		at.candidate = m.join(s.top[s.random.IntN(len(s.top))].candidate, at.candidate)
	}
	next := at.candidate
	for idle := 0; idle < patience && !s.over(); idle++ {
		// Now and then down a bit, to come up elsewhere.
		// What grows with the number of requests alone is not worth following for long.
		least := at.cost.took() * 103 / 100 * time.Duration(next.size()) / time.Duration(at.candidate.size())
		if s.random.IntN(20) == 0 {
			least /= 2
		}
		if c, ok := s.try(next, t, least); ok {
			if c.ended || c.took() > at.cost.took() {
				idle = 0
			}
			at = &found{candidate: next, target: t, cost: c, seed: s.seed, try: s.tried}
			s.keep(at, report)
			if c.ended {
				return
			}
		}
		next = m.change(at.candidate)
	}
}

// try is what a candidate costs, if that is more than the least and it is admitted. What is cheaper is asked first:
// whether the allocator is done before twice the least.
func (s *search) try(c *candidate, t *target, least time.Duration) (cost, bool) {
	s.tried++
	if err := s.limits.check(c); err != nil {
		s.refuse(err)
		return cost{}, false
	}
	if claims := c.claims(s.made[t].classes); claims != nil {
		of := measure(t, claims, 2*least+time.Millisecond)
		if !of.ended && (of.err != nil || of.took() <= least) {
			return of, false
		}
	}
	claims, err := s.server.admitted(c, s.made[t].classes)
	if err != nil {
		s.refuse(err)
		return cost{}, false
	}
	s.admittedCount++
	if len(claims) == 0 || s.gate != nil && !s.gate(t, claims) {
		return cost{}, false
	}
	of := measure(t, claims, s.most)
	// An error ends the pod's scheduling at its first node.
	return of, of.ended || of.err == nil && of.took() > least
}

// refuse counts a refusal by its beginning.
func (s *search) refuse(err error) {
	text := err.Error()
	s.refusals[text[:min(len(text), 150)]]++
}

func (s *search) keep(f *found, report func(*found)) {
	if of := s.best[f.target]; of == nil || f.cost.dearer(of.cost) {
		s.best[f.target] = f
		report(f)
	}
	at, _ := slices.BinarySearchFunc(s.top, f, func(a, b *found) int {
		if a.cost.dearer(b.cost) {
			return -1
		}
		return 1
	})
	key := f.candidate.key()
	if slices.ContainsFunc(s.top, func(of *found) bool { return of.candidate.key() == key }) {
		return
	}
	s.top = slices.Insert(s.top, at, f)
	s.top = s.top[:min(len(s.top), keep)]
}

// dearer reports whether it took longer.
func (c cost) dearer(than cost) bool {
	if c.ended != than.ended {
		return c.ended
	}
	return c.took() > than.took()
}

// costOf is what a candidate costs, measured some times: the least of it, so that what else the machine did
// does not
// count.
func (s *search) costOf(c *candidate, t *target, times int) (least cost, ok bool) {
	if s.limits.check(c) != nil {
		return cost{}, false
	}
	claims, err := s.server.admitted(c, s.made[t].classes)
	if err != nil || len(claims) == 0 {
		return cost{}, false
	}
	for i := range times {
		if now := measure(t, claims, s.most); i == 0 || least.cpu > now.cpu {
			least = now
		}
		if !least.ended && least.err != nil {
			return least, false
		}
	}
	return least, true
}

// again measures a pod once more, and takes off it what makes it no dearer.
func (s *search) again(f *found, until time.Time) {
	least, ok := s.costOf(f.candidate, f.target, 3)
	if !ok {
		return
	}
	f.cost = least
	for smaller := true; smaller && time.Now().Before(until); {
		smaller = false
		for _, c := range f.candidate.smaller() {
			if now, ok := s.costOf(c, f.target, 1); ok && (now.ended || now.took() >= f.cost.took()*95/100 &&
				!f.cost.ended) {
				f.candidate, smaller = c, true
				break
			}
		}
	}
	if least, ok = s.costOf(f.candidate, f.target, 3); ok {
		f.cost = least
	}
}

// smaller are the candidates that are less by one thing, larger things first.
func (c *candidate) smaller() []*candidate {
	var out []*candidate
	less := func(change func(*candidate)) {
		of := c.clone()
		change(of)
		(&changer{}).rename(of)
		out = append(out, of)
	}
	for i := range c.Containers {
		if len(c.Containers) > 1 {
			less(func(of *candidate) { of.Containers = slices.Delete(of.Containers, i, i+1) })
		}
		if len(c.Containers[i].Limits) > 0 {
			less(func(of *candidate) { of.Containers[i].Limits = nil })
		}
	}
	for i := range c.References {
		less(func(of *candidate) { of.References = slices.Delete(of.References, i, i+1) })
	}
	for i := range c.Claims {
		if !c.refers(i, true) && !c.refers(i, false) {
			less(func(of *candidate) {
				of.Claims = slices.Delete(of.Claims, i, i+1)
				for j := range of.References {
					if of.References[j].Claim > i {
						of.References[j].Claim--
					}
				}
			})
			continue
		}
		if len(c.Claims[i].Constraints) > 0 {
			less(func(of *candidate) { of.Claims[i].Constraints = of.Claims[i].Constraints[1:] })
		}
		for j, r := range c.Claims[i].Requests {
			less(func(of *candidate) { of.Claims[i].Requests = slices.Delete(of.Claims[i].Requests, j, j+1) })
			for k := range r.FirstAvailable {
				if len(r.FirstAvailable) > 1 {
					less(func(of *candidate) {
						of.Claims[i].Requests[j].FirstAvailable = slices.Delete(of.Claims[i].Requests[j].FirstAvailable, k, k+1)
					})
				}
			}
			for k, p := range partsOf(&r) {
				for _, change := range []struct {
					is bool
					do func(part)
				}{
					{len(*p.selectors) > 0, func(p part) { *p.selectors = nil }},
					{len(*p.selectors) > 1, func(p part) { *p.selectors = (*p.selectors)[1:] }},
					{len(*p.tolerations) > 0, func(p part) { *p.tolerations = nil }},
					{*p.capacity != nil, func(p part) { *p.capacity = nil }},
					{*p.count > 1, func(p part) { *p.count-- }},
				} {
					if change.is {
						less(func(of *candidate) { change.do(partsOf(&of.Claims[i].Requests[j])[k]) })
					}
				}
			}
		}
	}
	return out
}

// size is the number of requests, and a number that makes the first ones count little.
func (c *candidate) size() int {
	_, requests, _, _, _, containers := c.asks()
	return 16 + requests + containers
}

// asks says in short what a pod asks for.
func (c *candidate) asks() (claims, requests, devices, alternativesOf, selectors, containers int) {
	for _, r := range c.References {
		claims++
		for i := range c.Claims[r.Claim].Requests {
			requests++
			of := alternatives(&c.Claims[r.Claim].Requests[i])
			alternativesOf = max(alternativesOf, len(of))
			most := int64(0)
			for _, a := range of {
				most = max(most, a.Count)
				if a.AllocationMode == resourceapi.DeviceAllocationModeAll {
					most = resourceapi.AllocationResultsMaxSize
				}
				selectors += len(a.Selectors)
			}
			devices += int(most)
		}
	}
	return claims, requests, devices, alternativesOf, selectors, len(c.Containers)
}
