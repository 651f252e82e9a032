// SPDX-License-Identifier: Apache-2.0

package devices

import (
	"cmp"
	"slices"

	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
)

// IndexOrder is the order of binpack: cards by index, always the same, so that
// a card is filled before the next one is touched.
func IndexOrder(m *gpu.Machine) []int {
	order := make([]int, 0, len(m.GPUs))
	for _, g := range m.GPUs {
		order = append(order, g.Index)
	}
	return order
}

// Load is how far a card is taken.
type Load struct {
	// Units is what is granted of its memory, in GiB units.
	Units int64
	// Full says that the card takes no further claim, however small.
	Full bool
}

// SpreadOrder is the order of spread: the card of which the least is granted
// first, and those that take no claim last. Loads are by UUID; what is granted is
// compared as a part of the card's memory, as ACK's scheduler scores cards, and the
// lowest index wins a tie.
func SpreadOrder(m *gpu.Machine, loads map[string]Load) []int {
	return orderBy(m, func(a, b gpu.GPU) int {
		la, lb := loads[a.UUID], loads[b.UUID]
		return cmp.Or(
			compareBools(la.Full, lb.Full),
			// a's part < b's part, without division.
			cmp.Compare(la.Units*b.MemoryUnits(), lb.Units*a.MemoryUnits()),
		)
	})
}

// InUseFirst is the order of binpack where cards differ in their mode: the cards
// that are in use come before the free ones, so that a claim joins others of its
// mode before it decides the mode of another card. Cards that take no claim come
// last; otherwise they are ordered by index. Loads are by UUID.
func InUseFirst(m *gpu.Machine, loads map[string]Load) []int {
	return orderBy(m, func(a, b gpu.GPU) int {
		la, lb := loads[a.UUID], loads[b.UUID]
		return cmp.Or(compareBools(la.Full, lb.Full), compareBools(la.Units == 0, lb.Units == 0))
	})
}

// orderBy returns the cards' indices in the order of a comparison; the lowest index
// wins a tie.
func orderBy(m *gpu.Machine, compare func(a, b gpu.GPU) int) []int {
	cards := slices.Clone(m.GPUs)
	slices.SortFunc(cards, func(a, b gpu.GPU) int { return cmp.Or(compare(a, b), cmp.Compare(a.Index, b.Index)) })
	return IndexOrder(&gpu.Machine{GPUs: cards})
}

// compareBools orders false before true.
func compareBools(a, b bool) int {
	switch {
	case a == b:
		return 0
	case b:
		return -1
	default:
		return 1
	}
}

// ordered returns the cards in that order; those that it does not name follow.
func ordered(m *gpu.Machine, order []int) []gpu.GPU {
	rank := make(map[int]int, len(order))
	for i, index := range order {
		rank[index] = i - len(order)
	}
	cards := slices.Clone(m.GPUs)
	slices.SortStableFunc(cards, func(a, b gpu.GPU) int { return cmp.Compare(rank[a.Index], rank[b.Index]) })
	return cards
}
