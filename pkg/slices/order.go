package slices

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

// SpreadOrder is the order of spread: the card of which the least is granted
// first. granted is by UUID, in GiB units; it is compared as a part of the
// card's memory, as ACK's scheduler scores cards, and the lowest index wins a
// tie.
func SpreadOrder(m *gpu.Machine, granted map[string]int64) []int {
	cards := slices.Clone(m.GPUs)
	slices.SortStableFunc(cards, func(a, b gpu.GPU) int {
		// a's part < b's part, without division.
		return cmp.Or(
			cmp.Compare(granted[a.UUID]*b.MemoryUnits(), granted[b.UUID]*a.MemoryUnits()),
			cmp.Compare(a.Index, b.Index),
		)
	})
	return IndexOrder(&gpu.Machine{GPUs: cards})
}

// HeldFirst is the order of binpack where cards differ in their mode: the cards
// that are in use come before the free ones, each by index, so that a claim joins
// others of its mode before it decides the mode of another card.
func HeldFirst(m *gpu.Machine, granted map[string]int64) []int {
	cards := slices.Clone(m.GPUs)
	slices.SortStableFunc(cards, func(a, b gpu.GPU) int {
		return cmp.Or(cmp.Compare(min(granted[b.UUID], 1), min(granted[a.UUID], 1)), cmp.Compare(a.Index, b.Index))
	})
	return IndexOrder(&gpu.Machine{GPUs: cards})
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
