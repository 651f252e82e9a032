// SPDX-License-Identifier: Apache-2.0

package main

import (
	"math/rand/v2"
)

const (
	// asked is when the paper's protocol ends, fragmentedAt when fragments are measured, in percent of all GPUs.
	asked, fragmentedAt = 130, 90
)

// result are figures of a run, in percent: GPUs that are allocated at the end, fragments at fragmentedAt, and pods of 4
// and 8 GPUs that were placed.
type result struct{ allocated, fragments, large float64 }

// contender is a policy, with whether nodes with few CPUs are tainted.
type contender struct {
	name  string
	taint bool
	// option is whether the stock scheduler does it by the option best-node.
	option bool
	// gate is whether pods wait at a scheduling gate for their nomination, which policies here are in time for anyway.
	gate bool
	make func(w *workload) policy
	// paper is the name of the policy in the published results.
	paper string
}

// inflate places the pods of a seed until so much is asked for.
func inflate(nodes []node, w *workload, seed uint64, by contender) result {
	c := newCluster(nodes, seed, by.taint, by.make(w))
	withGPUs := w.typicalOf(100, func(k *kind) bool { return k.gpus > 0 })
	var sum, large, largePlaced int64
	var r result
	measured := false
	for _, k := range w.arrivals(rand.New(rand.NewPCG(seed, 0)), asked, c.gpus) {
		_, fits := c.place(k)
		sum += k.asked
		if k.gpus >= 4 {
			large++
			if fits {
				largePlaced++
			}
		}
		if !measured && sum*100 >= fragmentedAt*c.gpus {
			measured, r.fragments = true, c.fragments(withGPUs)
		}
	}
	r.allocated = c.allocated()
	if large > 0 {
		r.large = 100 * float64(largePlaced) / float64(large)
	}
	return r
}

// allocated is what is taken of all GPUs, in percent.
func (c *cluster) allocated() float64 {
	var free int64
	for i := range c.nodes {
		free += c.nodes[i].free
	}
	return 100 * float64(c.gpus-free) / float64(c.gpus)
}

// fragments are what typical pods cannot have of free GPUs, on average, in percent of all GPUs.
func (c *cluster) fragments(pods []typical) float64 {
	sum := 0.0
	for i := range c.nodes {
		sum += c.nodes[i].fragments(pods)
	}
	return 100 * sum / float64(c.gpus)
}
