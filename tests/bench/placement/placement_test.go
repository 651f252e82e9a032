// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"io/fs"
	"math"
	"math/rand/v2"
	"path/filepath"
	"testing"
)

// The figures of one seed: the paper's policies have what it published, and the driver's score has more. The order of a
// seed is not the paper's, in which seeds differ by up to 1.
func TestDefaultOfTheTrace(t *testing.T) {
	dir := filepath.Join("..", "..", "..", traceDir)
	nodes, err := readNodes(dir)
	if errors.Is(err, fs.ErrNotExist) {
		t.Skipf("the trace is no part of the repository, and not at %s: %v", traceDir, err)
	}
	if err != nil {
		t.Fatal(err)
	}
	w, err := readWorkload(dir, "default")
	if err != nil {
		t.Fatal(err)
	}
	paper, err := readPublished(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, by := range chosen([]string{"Random", "BestFit", "FGD", "best + taint"}) {
		t.Run(by.name, func(t *testing.T) {
			t.Parallel()
			got, err := simulate(nodes, w, firstSeed, by)
			if err != nil {
				t.Fatal(err)
			}
			published, is := paper[publishedAs(w.name, by.paper, firstSeed)]
			switch {
			case by.paper == "":
				if got.allocated < 95.5 || got.large < 65 {
					t.Errorf("%.2f %% of the GPUs are allocated, and %.0f %% of the large pods placed, want 95.5 and 65",
						got.allocated, got.large)
				}
			case !is:
				t.Error("the paper's result is not there")
			case math.Abs(got.allocated-published) > 1:
				t.Errorf("%.2f %% of the GPUs are allocated, %.2f in the paper", got.allocated, published)
			}
		})
	}
}

// twoNodes have two GPUs each, 10 CPUs and 4.
func twoNodes() []node {
	return []node{
		{name: "a", model: "x", cpu: 10, memory: 10, freeCPU: 10, freeMemory: 10, rests: []int64{1000, 400}, free: 1400},
		{name: "b", model: "y", cpu: 4, memory: 10, freeCPU: 4, freeMemory: 10, rests: []int64{1000, 1000}, free: 2000},
	}
}

func TestFragments(t *testing.T) {
	half, big := &kind{cpu: 2, gpus: 1, share: 500, asked: 500}, &kind{cpu: 8, gpus: 2, share: 1000, asked: 2000}
	for _, tc := range []struct {
		name string
		pods []typical
		want [2]float64
	}{
		{"rests smaller than the share", []typical{{half, 1}}, [2]float64{400, 0}},
		{"all where GPUs or CPU are lacking", []typical{{big, 1}}, [2]float64{1400, 2000}},
		{"pods without GPUs can have nothing", []typical{{&kind{cpu: 1}, 1}}, [2]float64{1400, 2000}},
		{"a model that is not there", []typical{{&kind{gpus: 1, share: 500, asked: 500, models: []string{"y"}}, 1}},
			[2]float64{1400, 0}},
		{"by weight", []typical{{half, 0.75}, {big, 0.25}}, [2]float64{650, 500}},
	} {
		for i, n := range twoNodes() {
			if got := n.fragments(tc.pods); got != tc.want[i] {
				t.Errorf("%s: node %s has fragments of %v, want %v", tc.name, n.name, got, tc.want[i])
			}
		}
	}
}

func TestArrivalsAreDrawnUntilSoMuchIsAskedFor(t *testing.T) {
	w := &workload{pods: []*kind{{asked: 300}, {}}}
	for percent, want := range map[int64]int64{20: 300, 130: 1500} {
		var sum int64
		for _, k := range w.arrivals(rand.New(rand.NewPCG(1, 1)), percent, 1000) {
			sum += k.asked
		}
		if sum != want {
			t.Errorf("%d are asked for at %d %% of 1000, want %d", sum, percent, want)
		}
	}
}
