// SPDX-License-Identifier: Apache-2.0

package main

import (
	"math"

	"github.com/gpushare/dra-driver-gpushare/pkg/placement/score"
)

// random takes any node with room, and any GPU.
type random struct{}

func (random) node(c *cluster, k *kind) int {
	t := newTies(c.random)
	for i := range c.nodes {
		if c.nodes[i].fits(k) {
			t.see(i, 0)
		}
	}
	return t.best
}

func (random) gpu(c *cluster, at int, k *kind) int {
	t := newTies(c.random)
	for i, rest := range c.nodes[at].rests {
		if rest >= k.share {
			t.see(i, 0)
		}
	}
	return t.best
}

func (random) changed(*cluster, int) {}

// packed takes the fullest GPU of a node.
type packed struct{}

func (packed) gpu(c *cluster, at int, k *kind) int { return c.nodes[at].fullest(k) }

func (packed) changed(*cluster, int) {}

// bestFit takes the node with the least CPU and GPUs left, which count as a part of the largest node's.
type bestFit struct {
	packed
	scores []float64
}

const largestCPU, largestGPUs = 128000, 8 * milli

func (b *bestFit) node(c *cluster, k *kind) int {
	b.scores = b.scores[:0]
	least, most := math.Inf(1), math.Inf(-1)
	for i := range c.nodes {
		n, s := &c.nodes[i], math.NaN()
		if n.fits(k) {
			left := float64(n.freeCPU-k.cpu)/largestCPU/2 + float64(n.free-k.asked)/largestGPUs/2
			s = math.Trunc(100 * (1 - left))
			least, most = min(least, s), max(most, s)
		}
		b.scores = append(b.scores, s)
	}
	first := newTies(nil)
	for i, s := range b.scores {
		if !math.IsNaN(s) {
			first.see(i, math.Trunc(100*(s-least)/max(1, most-least)))
		}
	}
	return first.best
}

// stock chooses as kube-scheduler does by default: by what is free of CPU and memory, and how even that is, among some
// of the nodes. Which GPU the driver's order decides: the fullest.
type stock struct{ packed }

const enoughCPU = 17000

// cramped reports whether a node has few CPUs for its GPUs.
func (n *node) cramped() bool { return n.cpu < enoughCPU*int64(len(n.rests)) }

func (stock) node(c *cluster, k *kind) int {
	all := len(c.nodes)
	enough := max(100, all*max(5, 50-all/125)/100)
	t, found, looked := newTies(c.random), 0, 0
	for ; looked < all && found < enough; looked++ {
		i := (c.next + looked) % all
		n := &c.nodes[i]
		if !n.fits(k) {
			continue
		}
		found++
		cpu, memory := n.cpu-n.freeCPU, n.memory-n.freeMemory
		s := (free(cpu+k.cpu, n.cpu)+free(memory+k.memory, n.memory))/2 +
			50 + (50+even(n, cpu+k.cpu, memory+k.memory)-even(n, cpu, memory))/2
		if c.taint && k.gpus == 0 && n.cramped() {
			s -= 300 // of TaintToleration, whose weight is 3
		}
		t.see(i, float64(s))
	}
	c.next = (c.next + looked) % all
	return t.best
}

// free is NodeResourcesFit's LeastAllocated.
func free(requested, capacity int64) int64 { return (capacity - requested) * 100 / capacity }

// even is NodeResourcesBalancedAllocation.
func even(n *node, cpu, memory int64) int64 {
	deviation := math.Abs(float64(cpu)/float64(n.cpu)-float64(memory)/float64(n.memory)) / 2
	return int64((1 - deviation) * 100)
}

// best is the stock scheduler, with the driver's score for pods with GPUs.
type best struct {
	stock
	index   *score.Index
	setting score.Setting
	kinds   map[*kind]*score.Kind
}

// shared is the mode of shares.
const shared = score.Whole << 1

func newBest(setting score.Setting) *best {
	return &best{index: score.New(), setting: setting, kinds: map[*kind]*score.Kind{}}
}

func (b *best) node(c *cluster, k *kind) int {
	if k.gpus == 0 {
		return b.stock.node(c, k)
	}
	of := b.kinds[k]
	if of == nil {
		of = &score.Kind{Ask: k.ask()}
		b.kinds[k] = of
	}
	b.index.Learn(of.Ask)
	for name := range b.index.Best(of, b.setting, c.random.IntN) {
		return c.at[name]
	}
	return -1
}

// ask is the kind as the score knows it.
func (k *kind) ask() score.Ask {
	request := score.Request{Count: k.gpus, Mode: score.Whole, Models: k.models}
	if k.share < milli {
		request.Mode, request.Memory = shared, k.share
	}
	return score.Ask{CPU: k.cpu, Memory: k.memory, Requests: []score.Request{request}}
}

func (b *best) changed(c *cluster, at int) {
	n := &c.nodes[at]
	left := score.Node{CPU: n.freeCPU, Memory: n.freeMemory}
	for _, rest := range n.rests {
		g := score.GPU{Model: n.model, Memory: milli, Free: rest, Cores: 100, Modes: shared}
		if rest == milli {
			g.Modes |= score.Whole
		}
		left.GPUs = append(left.GPUs, g)
	}
	b.index.Set(n.name, left)
}
