// SPDX-License-Identifier: Apache-2.0

package main

import (
	"math/rand/v2"
	"slices"
)

// cluster are the nodes of the trace, with the pods that a policy placed.
type cluster struct {
	nodes []node
	// at has the indices of nodes, by their names.
	at     map[string]int
	random *rand.Rand
	policy policy
	gpus   int64
	taint  bool
	// large counts the placed pods of manyGPUs or more.
	large int64
	// next is the node with which the stock scheduler begins.
	next int
}

// policy chooses nodes for pods, and GPUs for shares.
type policy interface {
	// node is one that has room for a pod, -1 for none.
	node(c *cluster, k *kind) int
	// gpu is one of a node's that have room for a share.
	gpu(c *cluster, at int, k *kind) int
	// changed hears of a node that is new, or of which something was taken.
	changed(c *cluster, at int)
}

// placed is where a pod is: GPUs by their bits.
type placed struct {
	node int
	gpus uint64
}

func newCluster(nodes []node, seed uint64, taint bool, p policy) *cluster {
	c := &cluster{at: map[string]int{}, random: rand.New(rand.NewPCG(seed, 1)), policy: p, taint: taint}
	for i := range nodes {
		n := nodes[i]
		n.rests = slices.Clone(n.rests)
		c.at[n.name], c.nodes = i, append(c.nodes, n)
		c.gpus += n.free
	}
	for i := range c.nodes {
		p.changed(c, i)
	}
	return c
}

// fits reports whether a node has room for a pod.
func (n *node) fits(k *kind) bool {
	return n.freeCPU >= k.cpu && n.freeMemory >= k.memory && n.hasGPUs(k)
}

// hasGPUs reports whether a node has GPUs for a pod.
func (n *node) hasGPUs(k *kind) bool {
	if k.gpus == 0 {
		return true
	}
	if n.free < k.asked || len(k.models) > 0 && !slices.Contains(k.models, n.model) {
		return false
	}
	fitting := 0
	for _, rest := range n.rests {
		if rest >= k.share {
			fitting++
		}
	}
	return fitting >= k.gpus
}

// place places a pod, and reports whether it found room.
func (c *cluster) place(k *kind) (placed, bool) {
	at := c.policy.node(c, k)
	if at < 0 {
		return placed{}, false
	}
	n, p := &c.nodes[at], placed{node: at}
	if k.gpus == 1 && k.share < milli {
		p.gpus = 1 << c.policy.gpu(c, at, k)
	} else {
		for i, left := 0, k.gpus; left > 0; i++ {
			if n.rests[i] >= k.share {
				p.gpus |= 1 << i
				left--
			}
		}
	}
	c.take(p, k)
	return p, true
}

// take has a pod take what it asks for.
func (c *cluster) take(p placed, k *kind) {
	n := &c.nodes[p.node]
	n.freeCPU -= k.cpu
	n.freeMemory -= k.memory
	for i := range n.rests {
		if p.gpus&(1<<i) != 0 {
			n.rests[i] -= k.share
			n.free -= k.share
		}
	}
	if k.gpus >= manyGPUs {
		c.large++
	}
	c.policy.changed(c, p.node)
}

// fullest is the fullest GPU with room for a share.
func (n *node) fullest(k *kind) int {
	best := -1
	for i, rest := range n.rests {
		if rest >= k.share && (best < 0 || rest < n.rests[best]) {
			best = i
		}
	}
	return best
}

// ties keeps the best of what it sees, and each of equal ones with the same chance. Without chance it keeps the first,
// as the paper's simulator does. FGD needs that: with random ties, pods without GPUs take the CPUs of all nodes alike.
type ties struct {
	random *rand.Rand
	// best is -1 for none.
	best  int
	score float64
	equal int
}

func newTies(random *rand.Rand) ties { return ties{random: random, best: -1} }

func (t *ties) see(i int, score float64) {
	switch {
	case t.best < 0 || score > t.score:
		t.best, t.score, t.equal = i, score, 1
	case score == t.score && t.random != nil:
		if t.equal++; t.random.IntN(t.equal) == 0 {
			t.best = i
		}
	}
}

// allocated returns the allocated part of all GPUs, in percent.
func (c *cluster) allocated() float64 {
	var free int64
	for i := range c.nodes {
		free += c.nodes[i].free
	}
	return percent(c.gpus-free, c.gpus)
}

// fragments returns what typical pods cannot use of free GPUs, on average, in percent of all GPUs.
func (c *cluster) fragments(pods []typical) float64 {
	sum := 0.0
	for i := range c.nodes {
		sum += c.nodes[i].fragments(pods)
	}
	return 100 * sum / float64(c.gpus)
}

// percent returns 0 if the whole is 0.
func percent(part, all int64) float64 {
	if all == 0 {
		return 0
	}
	return 100 * float64(part) / float64(all)
}
