// SPDX-License-Identifier: Apache-2.0

package devices

import (
	"cmp"
	"slices"

	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
)

// IndexOrder is the order of the GPUs by index.
func IndexOrder(m *gpu.Machine) []int {
	order := make([]int, 0, len(m.GPUs))
	for _, g := range m.GPUs {
		order = append(order, g.Index)
	}
	return order
}

// ordered returns the GPUs in that order; those that it does not name follow.
func ordered(m *gpu.Machine, order []int) []gpu.GPU {
	rank := make(map[int]int, len(order))
	for i, index := range order {
		rank[index] = i - len(order)
	}
	gpus := slices.Clone(m.GPUs)
	slices.SortStableFunc(gpus, func(a, b gpu.GPU) int { return cmp.Compare(rank[a.Index], rank[b.Index]) })
	return gpus
}
