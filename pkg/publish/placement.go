package publish

import (
	"context"
	"fmt"
	"slices"

	"github.com/gpushare/dra-driver-gpushare/pkg/deviceplugin"
	"github.com/gpushare/dra-driver-gpushare/pkg/devices"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
	"github.com/gpushare/dra-driver-gpushare/pkg/mode"
	"github.com/gpushare/dra-driver-gpushare/pkg/state"
)

// placement is an order of the cards, by index, and how far they were taken, by
// UUID, when it was decided on.
type placement struct {
	order []int
	loads map[string]devices.Load
}

// place decides on the order of the cards in mode m. Where it depends on what is
// granted it is left as it is as long as that makes no difference, for each write
// makes the scheduler look at all waiting pods again.
func (p *Publisher) place(ctx context.Context, machine *gpu.Machine, m mode.Mode, wanted mode.Placement, servings []serving, held deviceplugin.Taken) (placement, error) {
	spread := wanted == mode.Spread && (m.Shared() || m == mode.Dynamic)
	if !spread && m != mode.Dynamic {
		return placement{order: devices.IndexOrder(machine)}, nil
	}
	records, err := p.Claims.Prepared(ctx)
	if err != nil {
		return placement{}, fmt.Errorf("look up what is granted of each card: %w", err)
	}
	next := placement{loads: loadsOf(machine, m, servings, usesOf(records), held)}
	next.order = devices.HeldFirst(machine, next.loads)
	keeps := p.placement.packs
	if spread {
		next.order = devices.SpreadOrder(machine, next.loads)
		keeps = p.placement.spreads
	}
	if sameCards(p.placement.order, next.order) && keeps(machine, next) {
		return p.placement, nil
	}
	return next, nil
}

// spreads says whether claims are still spread by this order as they would be by
// the next one: the first card that takes claims is the same, and none went past it.
// One that did shows that the card has no room for its like, so that the order of
// the others counts.
func (p placement) spreads(machine *gpu.Machine, next placement) bool {
	first := firstOpen(machine, p.order, next.loads)
	if first < 0 {
		return true
	}
	for _, index := range p.order[first+1:] {
		if uuid := uuidOf(machine, index); next.loads[uuid].Units > p.loads[uuid].Units {
			return false
		}
	}
	return p.order[first] == next.order[firstOpen(machine, next.order, next.loads)]
}

// packs says whether claims still come to cards in use first: no free card stands
// before one that is in use and takes further claims.
func (p placement) packs(machine *gpu.Machine, next placement) bool {
	free := false
	for _, index := range p.order {
		switch load := next.loads[uuidOf(machine, index)]; {
		case load.Full:
		case load.Units == 0:
			free = true
		case free:
			return false
		}
	}
	return true
}

// firstOpen is the position of the first card of the order that takes claims, -1 if
// none does.
func firstOpen(machine *gpu.Machine, order []int, loads map[string]devices.Load) int {
	return slices.IndexFunc(order, func(index int) bool { return !loads[uuidOf(machine, index)].Full })
}

func uuidOf(machine *gpu.Machine, index int) string {
	i := slices.IndexFunc(machine.GPUs, func(g gpu.GPU) bool { return g.Index == index })
	if i < 0 {
		return ""
	}
	return machine.GPUs[i].UUID
}

func sameCards(a, b []int) bool {
	return slices.Equal(slices.Sorted(slices.Values(a)), slices.Sorted(slices.Values(b)))
}

// use is what claims hold of a card. The mode is empty for a free card; a card in a
// mode that is not shared is held as a whole.
type use struct {
	mode                 mode.Mode
	units, cores, shares int64
}

// usesOf is what claims hold of the cards, by UUID.
func usesOf(records []state.Record) map[string]use {
	uses := map[string]use{}
	for _, r := range records {
		for _, g := range r.Grants {
			if g.Admin {
				continue
			}
			u := uses[g.Card.UUID]
			u.mode = g.Mode
			u.shares++
			if g.Mode.Shared() {
				u.units += g.Units
				u.cores += g.CoresPercent
			} else {
				u.units += g.Card.Units()
			}
			uses[g.Card.UUID] = u
		}
	}
	return uses
}

// loadsOf is how far the cards are taken by claims and by pods without one, by UUID.
func loadsOf(machine *gpu.Machine, m mode.Mode, servings []serving, uses map[string]use, held deviceplugin.Taken) map[string]devices.Load {
	loads := map[string]devices.Load{}
	for _, g := range machine.GPUs {
		u, units := uses[g.UUID], g.MemoryUnits()
		loads[g.UUID] = devices.Load{
			Units: u.units + units - held.Card(g.UUID).Left(units, 0).Units,
			Full:  !slices.ContainsFunc(servings, func(s serving) bool { return s.takes(g, m, u, held.Card(g.UUID)) }),
		}
	}
	return loads
}

// takes says whether a card on a node of a mode takes a further claim of this
// serving, if only the smallest.
func (s serving) takes(g gpu.GPU, nodeMode mode.Mode, u use, card deviceplugin.Card) bool {
	if _, unhealthy := s.unhealthy[g.UUID]; unhealthy || card.Closes(nodeMode) {
		return false
	}
	if !s.mode.Shared() {
		return u.mode == ""
	}
	if u.mode != "" && u.mode != s.mode {
		return false
	}
	left := card.Left(g.MemoryUnits(), s.slots)
	return !devices.Room{Units: left.Units - u.units, Cores: left.Cores - u.cores, Slots: left.Slots - u.shares}.Empty(s.mode)
}
