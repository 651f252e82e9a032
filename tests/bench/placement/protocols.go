// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"math/rand/v2"
	"slices"
)

const (
	// asked and fragmentedAt are percentages of all GPUs. When pods have asked for so much, the paper's protocol ends,
	// or fragments are measured.
	asked, fragmentedAt = 130, 90
	// manyGPUs is how many GPUs a large pod has at least.
	manyGPUs = 4
)

// result are figures of a run, in percent: GPUs that are allocated at the end, fragments at fragmentedAt, and pods of 4
// and 8 GPUs that were placed.
type result struct{ allocated, fragments, large float64 }

// inflate creates the pods of a seed until they ask for so much. come places a pod in the cluster, or lets it wait
// until the next call of settle.
func inflate(c *cluster, w *workload, seed uint64, come func(k *kind) error, settle func() error) (result, error) {
	var r result
	withGPUs := w.typicalOf(100, func(k *kind) bool { return k.gpus > 0 })
	var sum, large int64
	measured := false
	for _, k := range w.arrivals(rand.New(rand.NewPCG(seed, 0)), asked, c.gpus) {
		if err := come(k); err != nil {
			return r, err
		}
		if k.gpus >= manyGPUs {
			large++
		}
		if sum += k.asked; !measured && sum*100 >= fragmentedAt*c.gpus {
			if err := settle(); err != nil {
				return r, err
			}
			measured, r.fragments = true, c.fragments(withGPUs)
		}
	}
	if err := settle(); err != nil {
		return r, err
	}
	r.allocated, r.large = c.allocated(), percent(c.large, large)
	return r, nil
}

// simulate places the pods of a seed by a contender's policy.
func simulate(nodes []node, w *workload, seed uint64, by contender) (result, error) {
	c := newCluster(nodes, seed, by.taint, by.make(w))
	return inflate(c, w, seed, func(k *kind) error {
		c.place(k)
		return nil
	}, func() error { return nil })
}

const (
	// copies is how often each pod comes, within jitter seconds of its own time, while only every everyNode-th node is
	// used. The lists are samples, whose pods ask for less than 1 % of all GPUs at any time.
	copies, jitter, everyNode = 35, 12 * 3600, 4
	// retried is after how many seconds pods without room are tried again.
	retried = 600
)

// guest is a pod that comes and goes.
type guest struct {
	pod
	placed placed
	is     bool
}

// event is the arrival or the departure of a guest.
type event struct {
	at   int64
	goes bool
	*guest
}

// moment is the state of the cluster at some time: the GPUs that present pods ask for, in percent of all GPUs, and the
// result so far.
type moment struct {
	asked float64
	result
}

// comeAndGo lets the pods of a workload come and go at their own times. It returns the state of the cluster at some
// percentages of the last time.
func comeAndGo(nodes []node, w *workload, seed uint64, by contender, at []int64) []moment {
	guests := w.guests(rand.New(rand.NewPCG(seed, 2)))
	events := eventsOf(guests)
	c := newCluster(every(nodes, everyNode), seed, by.taint, by.make(w))
	withGPUs := w.typicalOf(100, func(k *kind) bool { return k.gpus > 0 })
	var last int64
	for _, p := range w.pods {
		last = max(last, p.created)
	}
	var waiting []*guest
	var out []moment
	for now := int64(0); len(out) < len(at); now += retried {
		waiting = c.retry(waiting, now)
		end := now + retried
		for ; len(events) > 0 && (events[0].at < end || events[0].goes && events[0].at == end); events = events[1:] {
			e := events[0]
			if !e.goes {
				e.placed, e.is = c.place(e.kind)
			}
			switch {
			case e.deleted <= e.at: // also one that goes at once
				c.leave(e.guest)
			case !e.is:
				waiting = append(waiting, e.guest)
			}
		}
		if end >= last*at[len(out)]/100 {
			out = append(out, c.moment(guests, end, withGPUs))
		}
	}
	return out
}

// guests returns the pods in the order in which they come.
func (w *workload) guests(random *rand.Rand) []guest {
	var out []guest
	for _, p := range w.pods {
		for range copies {
			late := random.Int64N(jitter)
			out = append(out, guest{pod: pod{p.kind, p.created + late, p.deleted + late}})
		}
	}
	slices.SortStableFunc(out, func(a, b guest) int { return cmp.Compare(a.created, b.created) })
	return out
}

// eventsOf returns the events of guests in the order of time. At the same time, departures come before arrivals.
func eventsOf(guests []guest) []event {
	var come, leave []event
	for i := range guests {
		g := &guests[i]
		come, leave = append(come, event{g.created, false, g}), append(leave, event{g.deleted, true, g})
	}
	all := slices.Concat(leave, come)
	slices.SortStableFunc(all, func(a, b event) int { return cmp.Compare(a.at, b.at) })
	return all
}

// leave removes a pod.
func (c *cluster) leave(g *guest) {
	if g.is {
		c.take(g.placed, g.kind, -1)
		g.is = false
	}
}

// retry tries to place the waiting pods, the oldest first, and returns those that still wait.
func (c *cluster) retry(waiting []*guest, now int64) []*guest {
	still, none := waiting[:0], map[*kind]bool{}
	for _, g := range waiting {
		switch {
		case g.deleted <= now:
			continue
		case !none[g.kind]:
			g.placed, g.is = c.place(g.kind)
			none[g.kind] = !g.is
		}
		if !g.is {
			still = append(still, g)
		}
	}
	return still
}

// moment returns the state of the cluster before the pods of that time come.
func (c *cluster) moment(guests []guest, now int64, withGPUs []typical) moment {
	var asked, large int64
	for _, g := range guests {
		if g.created < now && g.deleted > now {
			asked += g.kind.asked
			if g.kind.gpus >= manyGPUs {
				large++
			}
		}
	}
	return moment{percent(asked, c.gpus), result{c.allocated(), c.fragments(withGPUs), percent(c.large, large)}}
}
