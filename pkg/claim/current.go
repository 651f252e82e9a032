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
