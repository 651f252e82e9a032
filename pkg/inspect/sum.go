// SPDX-License-Identifier: Apache-2.0

package inspect

import (
	"cmp"
	"maps"
	"math"
	"slices"
	"strings"

	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
	"github.com/gpushare/dra-driver-gpushare/pkg/mode"
)

// table puts all in order and adds it up.
func (b *builder) table() *Table {
	t := &Table{MemoryGiB: b.amount(0), CoresPercent: b.amount(0), Nodes: []Node{}, Notes: b.notes,
		withUse: b.in.Used != nil}
	for _, name := range slices.Sorted(maps.Keys(b.nodes)) {
		if use, known := b.in.Used[name]; known {
			b.nodes[name].fillUse(use)
		}
		n := b.nodes[name].finish()
		t.MemoryGiB.add(n.MemoryGiB)
		t.CoresPercent.add(n.CoresPercent)
		t.Nodes = append(t.Nodes, n)
	}
	return t
}

func (n *node) finish() Node {
	done := n.Node
	done.GPUs = make([]GPU, 0, len(n.gpus))
	for _, index := range n.indices() {
		c := n.gpus[index].finish()
		done.MemoryGiB.add(c.MemoryGiB)
		done.CoresPercent.add(c.CoresPercent)
		done.GPUs = append(done.GPUs, c)
		if offered := offeredIn(n.gpus[index].offered); done.Mode == "" || done.Mode == mode.MIG {
			done.Mode = cmp.Or(offered, done.Mode)
		}
	}
	done.Instances = n.finishInstances()
	done.Holders = make([]Holder, 0, len(n.holders))
	for _, h := range n.holders {
		slices.SortFunc(h.Shares, func(a, b Share) int { return cmp.Compare(a.GPU, b.GPU) })
		slices.Sort(h.Claims)
		done.Holders = append(done.Holders, *h)
	}
	slices.SortFunc(done.Holders, func(a, b Holder) int {
		return cmp.Or(cmp.Compare(a.firstGPU(), b.firstGPU()), strings.Compare(a.Namespace, b.Namespace),
			strings.Compare(a.Name(), b.Name()))
	})
	return done
}

// indices are those of the GPUs, ascending.
func (n *node) indices() []int { return slices.Sorted(maps.Keys(n.gpus)) }

// firstGPU is the index of the first GPU that is known to be the holder's; who has
// none comes last.
func (h *Holder) firstGPU() int {
	if len(h.Shares) == 0 {
		return math.MaxInt
	}
	return h.Shares[0].GPU
}

func (c *unfinishedGPU) finish() GPU {
	done := c.GPU
	done.Mode = cmp.Or(c.holds, offeredIn(c.offered))
	if done.Mode.CountsCores() {
		done.CoresPercent.Total = gpu.WholeCores
	}
	return done
}

// offeredIn is the mode of a node whose GPUs are offered in these modes, "" where
// they are not offered.
func offeredIn(modes []mode.Mode) mode.Mode {
	switch len(modes) {
	case 0:
		return ""
	case 1:
		return modes[0]
	default:
		return mode.Dynamic
	}
}
