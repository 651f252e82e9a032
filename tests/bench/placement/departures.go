// SPDX-License-Identifier: Apache-2.0

package main

import (
	"container/heap"
	"math/rand/v2"
	"slices"
)

const (
	// copies of each pod come, within jitter seconds of its own time, to every fourth node: the lists are samples, and ask
	// for less than 1 % of all GPUs at any time.
	copies, jitter, everyNode = 35, 12 * 3600, 4
	// retried is after how many seconds pods that found no room are tried again.
	retried = 600
)

// guest is a pod that comes and goes.
type guest struct {
	pod
	placed placed
	is     bool
}

// guests are pods in the order in which they go.
type guests []*guest

func (g guests) Len() int           { return len(g) }
func (g guests) Less(i, j int) bool { return g[i].deleted < g[j].deleted }
func (g guests) Swap(i, j int)      { g[i], g[j] = g[j], g[i] }
func (g *guests) Push(x any)        { *g = append(*g, x.(*guest)) }
func (g *guests) Pop() any {
	last := (*g)[len(*g)-1]
	*g = (*g)[:len(*g)-1]
	return last
}

// moment is how things stand at some time, in percent: GPUs that are asked for by pods that have come and not gone,
// that are allocated and that are fragments, of all GPUs; and pods of 4 and 8 GPUs that run, of those that are there.
type moment struct{ asked, allocated, fragments, large float64 }

// comeAndGo has the pods of a workload come and go by their own times, and looks at the cluster at some times, in
// percent of the last one.
func comeAndGo(nodes []node, w *workload, seed uint64, by contender, at []int64) []moment {
	arrivals := w.guests(rand.New(rand.NewPCG(seed, 2)))
	c := newCluster(every(nodes, everyNode), seed, by.taint, by.make(w))
	withGPUs := w.typicalOf(100, func(k *kind) bool { return k.gpus > 0 })
	var last int64
	for _, p := range w.pods {
		last = max(last, p.created)
	}
	var there guests
	var waiting []*guest
	var out []moment
	next := 0
	for now := int64(0); len(out) < len(at); now += retried {
		waiting = c.retry(waiting, now)
		for ; next < len(arrivals) && arrivals[next].created < now+retried; next++ {
			g := &arrivals[next]
			for there.Len() > 0 && there[0].deleted <= g.created {
				c.leave(heap.Pop(&there).(*guest))
			}
			heap.Push(&there, g)
			if g.placed, g.is = c.place(g.kind); !g.is {
				waiting = append(waiting, g)
			}
		}
		for there.Len() > 0 && there[0].deleted <= now+retried {
			c.leave(heap.Pop(&there).(*guest))
		}
		if now+retried >= last*at[len(out)]/100 {
			out = append(out, c.moment(there, withGPUs))
		}
	}
	return out
}

// guests are the pods in the order in which they come.
func (w *workload) guests(random *rand.Rand) []guest {
	var out []guest
	for _, p := range w.pods {
		for range copies {
			late := random.Int64N(jitter)
			out = append(out, guest{pod: pod{p.kind, p.created + late, p.deleted + late}})
		}
	}
	slices.SortStableFunc(out, func(a, b guest) int { return int(a.created - b.created) })
	return out
}

// leave has a pod go.
func (c *cluster) leave(g *guest) {
	if g.is {
		c.take(g.placed, g.kind, -1)
		g.is = false
	}
}

// retry tries to place pods that wait, the first ones first, and returns those that go on waiting.
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

// moment is how things stand now.
func (c *cluster) moment(there guests, withGPUs []typical) moment {
	var asked, large, running int64
	for _, g := range there {
		asked += g.kind.asked
		if g.kind.gpus >= 4 {
			large++
			if g.is {
				running++
			}
		}
	}
	m := moment{asked: 100 * float64(asked) / float64(c.gpus), allocated: c.allocated(), fragments: c.fragments(withGPUs)}
	if large > 0 {
		m.large = 100 * float64(running) / float64(large)
	}
	return m
}
