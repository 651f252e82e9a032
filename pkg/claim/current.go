// SPDX-License-Identifier: Apache-2.0

package claim

import (
	"slices"

	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
)

// Current are the grants with the indices that their GPUs have on the machine, for whoever is told of them. After a
// boot with a GPU less these are others than when it was granted, by which devices are named. A GPU that the machine
// does not have keeps its index, and so do all where m is nil: the GPUs have not been read. grants stay as they are.
func Current(grants []Grant, m *gpu.Machine) []Grant {
	if m == nil {
		return grants
	}
	current, own := grants, false
	for i, g := range grants {
		index, there := g.GPU.indexOn(m)
		if !there || index == g.GPU.Index {
			continue
		}
		if !own {
			current, own = slices.Clone(grants), true
		}
		current[i].GPU.Index = index
	}
	return current
}

// Parent is the UUID of the GPU, or of the one that an instance is part of.
func (c GPU) Parent() string {
	if c.MIG != nil {
		return c.MIG.ParentUUID
	}
	return c.UUID
}

// indexOn is the index on the machine of the GPU, or of the one that an instance is part of, even if it was left out.
func (c GPU) indexOn(m *gpu.Machine) (index int, there bool) {
	uuid := c.Parent()
	for _, g := range m.All() {
		if g.UUID == uuid {
			return g.Index, true
		}
	}
	for _, f := range m.Faults {
		if f.UUID == uuid && uuid != "" {
			return f.Index, true
		}
	}
	return 0, false
}

// Left reports whether the machine does not have the GPU any more. It is false for a MIG instance (see Gone), and while
// a GPU cannot be read that may be it.
func (c GPU) Left(m *gpu.Machine) bool {
	return c.MIG == nil && !slices.ContainsFunc(m.All(), func(g gpu.GPU) bool { return g.UUID == c.UUID }) &&
		!slices.ContainsFunc(m.Faults, func(f gpu.Fault) bool { return f.UUID == "" || f.UUID == c.UUID })
}

// Replaced reports whether GPUs of the grants have left the machine, and each of them has another of its kind in its
// place. One that others hold by another index is not in the place of any: the driver counts GPUs from another one on.
func Replaced(grants, others []Grant, m *gpu.Machine) bool {
	replaced := false
	for _, g := range grants {
		at := slices.IndexFunc(m.GPUs, func(now gpu.GPU) bool { return now.Index == g.GPU.Index })
		if at < 0 {
			return false
		}
		now := m.GPUs[at]
		if now.UUID == g.GPU.UUID {
			continue
		}
		if !g.GPU.Left(m) || now.Model != g.GPU.Model || now.MemoryMiB != g.GPU.MemoryMiB ||
			slices.ContainsFunc(others, func(o Grant) bool {
				return !o.Admin && o.GPU.Parent() == now.UUID && o.GPU.Index != now.Index
			}) {
			return false
		}
		replaced = true
	}
	return replaced
}
