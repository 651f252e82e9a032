// SPDX-License-Identifier: Apache-2.0

package usage

import (
	"slices"

	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
	"github.com/gpushare/dra-driver-gpushare/pkg/mode"
	"github.com/gpushare/dra-driver-gpushare/pkg/placement"
)

// Layout is the order of a node's GPUs, by index, and, where shares are spread, what claims may have together of each
// in each mode, by UUID.
type Layout struct {
	Order  []int
	Limits map[mode.Mode]map[string]gpu.Amount
}

// Serving is how a node offers its GPUs in one mode: as so many shares, of GPUs that are not closed.
type Serving struct {
	Mode   mode.Mode
	Slots  int64
	Closed func(uuid string) bool
}

// Occupancy is how far the GPUs of a node, which is in a mode, are used.
type Occupancy struct {
	GPUs   []gpu.GPU
	Mode   mode.Mode
	Served []Serving
	// Used is what is used of them, Counted what the scheduler takes for used.
	Used, Counted Node
}

// Packed is the Layout that fills one GPU after the other.
func (o Occupancy) Packed() Layout { return Layout{Order: placement.Packed(o.placed())} }

// Spread is the Layout that keeps the GPUs even. largest is the largest share of those that were granted.
func (o Occupancy) Spread(largest int64, w placement.Wanted) Layout {
	l := Layout{Order: placement.Spread(o.placed()), Limits: map[mode.Mode]map[string]gpu.Amount{}}
	for _, s := range o.Served {
		if !s.Mode.Shared() {
			continue
		}
		l.Limits[s.Mode] = map[string]gpu.Amount{}
		for i, limit := range placement.Limits(o.shared(s), largest, w) {
			l.Limits[s.Mode][o.GPUs[i].UUID] = limit
		}
	}
	return l
}

// placed are the GPUs in their order. One on which no serving takes a further claim, if only the smallest, is full.
func (o Occupancy) placed() []placement.GPU {
	out := make([]placement.GPU, 0, len(o.GPUs))
	for _, g := range o.GPUs {
		full := !slices.ContainsFunc(o.Served, func(s Serving) bool { return o.takes(s, g) })
		out = append(out, o.Used.GPU(g.UUID).Placed(g.Index, g.MemoryUnits(), full))
	}
	return out
}

func (o Occupancy) takes(s Serving, g gpu.GPU) bool {
	return !s.Closed(g.UUID) && o.Counted.GPU(g.UUID).Takes(s.Mode, o.Mode, g.MemoryUnits(), s.Slots)
}

// shared are the GPUs as a mode offers shares of them.
func (o Occupancy) shared(s Serving) []placement.Shared {
	out := make([]placement.Shared, 0, len(o.GPUs))
	for _, g := range o.GPUs {
		u, units := o.Used.GPU(g.UUID), g.MemoryUnits()
		placed := u.Placed(g.Index, units, !o.takes(s, g))
		out = append(out, placement.Shared{
			GPU: placed, Room: u.Reserved.Left(units, s.Slots), Granted: o.granted(s, g),
			ByName: o.Counted.GPU(g.UUID).Placed(g.Index, units, placed.Full).Used - placed.Used,
		})
	}
	return out
}

func (o Occupancy) granted(s Serving, g gpu.GPU) gpu.Amount {
	u := o.Counted.GPU(g.UUID)
	if u.Mode != s.Mode {
		return gpu.Amount{}
	}
	return gpu.Amount{Units: u.Units, Shares: u.Shares}
}

// Kept is what was placed before where the next claims use it as they would by what is next: GPUs that take any come
// in the same order and take as much.
func (o Occupancy) Kept(before, next Layout) Layout {
	if len(before.Order) == len(next.Order) && slices.Equal(o.effect(before), o.effect(next)) {
		return before
	}
	return next
}

// offered is what a GPU takes beside what was granted of it, in one mode.
type offered struct {
	index int
	mode  mode.Mode
	more  gpu.Amount
}

// effect is what the scheduler finds, in its order.
func (o Occupancy) effect(l Layout) []offered {
	var found []offered
	for _, index := range l.Order {
		i := slices.IndexFunc(o.GPUs, func(g gpu.GPU) bool { return g.Index == index })
		if i < 0 {
			return nil
		}
		g := o.GPUs[i]
		for _, s := range o.Served {
			if !o.takes(s, g) {
				continue
			}
			limit, limited := l.Limits[s.Mode][g.UUID]
			if !limited {
				found = append(found, offered{index: index, mode: s.Mode})
			} else if more := placement.More(limit, o.granted(s, g)); more != (gpu.Amount{}) {
				found = append(found, offered{index, s.Mode, more})
			}
		}
	}
	return found
}

// Largest is the most that one claim has of one GPU that it shares, in GiB of its memory.
func Largest(claims []Claim) int64 {
	most := int64(0)
	for _, c := range claims {
		units, cores := map[string]int64{}, map[string]int64{}
		for _, g := range c.Grants {
			if g.Mode.Shared() && !g.Admin {
				uuid := g.GPU.UUID
				units[uuid], cores[uuid] = units[uuid]+g.Units, cores[uuid]+g.CoresPercent
				most = max(most, units[uuid], placement.AsMemory(cores[uuid], g.GPU.Units()))
			}
		}
	}
	return most
}
