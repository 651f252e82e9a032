// SPDX-License-Identifier: Apache-2.0

package main

import "math/rand/v2"

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
