// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/gpushare/dra-driver-gpushare/pkg/placement/defragment"
	"github.com/gpushare/dra-driver-gpushare/pkg/placement/score"
)

// savedLeast is what a move saves of a GPU at least.
const savedLeast = 0.001

// batches are how many pods are moved before those that wait are let in.
var batches = []int{0, 50, 100, 200, 500}

// tenant is a pod with GPUs that may move.
type tenant struct {
	kind *kind
	placed
}

// world is a cluster whose shares are moved.
type world struct {
	*cluster
	pods []tenant
	// undo are the places that pods had.
	undo []func()
}

func (w *world) Nodes() int             { return len(w.nodes) }
func (w *world) Left(at int) score.Node { return w.nodes[at].left() }
func (w *world) Undo()                  { w.undo[len(w.undo)-1](); w.undo = w.undo[:len(w.undo)-1] }
func (w *world) Without(i int) score.Node {
	p := &w.pods[i]
	w.take(p.placed, p.kind, -1)
	defer w.take(p.placed, p.kind, 1)
	return w.Left(p.node)
}

func (w *world) Move(i, to int) bool {
	p, was := &w.pods[i], w.pods[i].placed
	if !w.nodes[to].fits(p.kind) {
		return false
	}
	w.take(was, p.kind, -1)
	p.placed = w.on(to, p.kind)
	w.undo = append(w.undo, func() {
		w.take(p.placed, p.kind, -1)
		w.take(was, p.kind, 1)
		p.placed = was
	})
	return true
}

// full is a cluster that the stock scheduler has filled, with the pods that found no room.
func full(nodes []node, w *workload, seed uint64) (*world, *score.Index, []*kind) {
	c := newCluster(nodes, seed, false, stock{})
	is, learned, kinds := &world{cluster: c}, score.New(), map[*kind]*score.Kind{}
	var waiting []*kind
	for _, k := range w.arrivals(rand.New(rand.NewPCG(seed, 0)), asked, c.gpus) {
		if k.gpus > 0 {
			learned.Learn(k.of(kinds).Ask)
		}
		p, fits := c.place(k)
		switch {
		case !fits:
			waiting = append(waiting, k)
		case k.gpus == 1 && k.share < milli:
			is.pods = append(is.pods, tenant{k, p})
		}
	}
	for i := range c.nodes {
		learned.Set(c.nodes[i].name, c.nodes[i].left())
	}
	return is, learned, waiting
}

// moved is what is allocated, in percent, after so many moves, when those that wait have been let in.
func moved(nodes []node, w *workload, seed uint64, most int) float64 {
	is, learned, waiting := full(nodes, w, seed)
	kinds := map[*kind]*score.Kind{}
	search := defragment.Search{World: is, Index: learned, Most: most, Least: savedLeast}
	for i := range is.pods {
		p := &is.pods[i]
		search.Pods = append(search.Pods, defragment.Pod{Node: p.node, Ask: p.kind.of(kinds).Ask})
	}
	if most > 0 {
		search.Spare()
	}
	for _, k := range waiting {
		is.place(k)
	}
	return is.allocated()
}

// defragmented prints what moves bring on clusters that the stock scheduler has filled.
func defragmented(nodes []node, lists []*workload, seeds int) error {
	rows := make([][]string, len(lists))
	for i, w := range lists {
		rows[i] = []string{w.name}
		for _, most := range batches {
			began, results := time.Now(), make([]float64, seeds)
			var all errgroup.Group
			all.SetLimit(runtime.NumCPU())
			for s := range seeds {
				all.Go(func() error {
					results[s] = moved(nodes, w, firstSeed+uint64(s), most)
					return nil
				})
			}
			if err := all.Wait(); err != nil {
				return err
			}
			sum := 0.0
			for _, r := range results {
				sum += r / float64(seeds)
			}
			rows[i] = append(rows[i], fmt.Sprintf("%.2f", sum))
			fmt.Fprintf(os.Stderr, "placement: %d moves on %s took %s\n", most, w.name, time.Since(began).Round(time.Second))
		}
	}
	head := []string{"moves"}
	for _, most := range batches {
		head = append(head, fmt.Sprint(most))
	}
	printTable(head, len(rows), func(i int) []string { return slices.Clone(rows[i]) })
	return nil
}
