// SPDX-License-Identifier: Apache-2.0

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
	"github.com/gpushare/dra-driver-gpushare/pkg/usage"
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
func (p *Publisher) place(ctx context.Context, machine *gpu.Machine, m mode.Mode, wanted mode.Placement,
	served []servedMode, reserved deviceplugin.Reserved) (placement, error) {
	spread := wanted == mode.Spread && (m.Shared() || m == mode.Dynamic)
	if !spread && m != mode.Dynamic {
		return placement{order: devices.IndexOrder(machine)}, nil
	}
	records, err := p.Claims.Prepared(ctx)
	if err != nil {
		return placement{}, fmt.Errorf("look up what is granted of each GPU: %w", err)
	}
	next := placement{loads: loadsOf(machine, m, served, usageOf(records, reserved))}
	next.order = devices.InUseFirst(machine, next.loads)
	keeps := p.placement.packs
	if spread {
		next.order = devices.SpreadOrder(machine, next.loads)
		keeps = p.placement.spreads
	}
	if sameGPUs(p.placement.order, next.order) && keeps(machine, next) {
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

func sameGPUs(a, b []int) bool {
	return slices.Equal(slices.Sorted(slices.Values(a)), slices.Sorted(slices.Values(b)))
}

// usageOf is what is used of the GPUs: by the records' claims, and by pods without a claim.
func usageOf(records []state.Record, reserved deviceplugin.Reserved) usage.Node {
	claims := make([]usage.Claim, 0, len(records))
	for _, r := range records {
		claims = append(claims, r.Usage())
	}
	return usage.Of(claims, reserved.Card)
}

// loadsOf is how far the GPUs are used, by UUID. One on which no serving takes a further
// claim, if only the smallest, is full.
func loadsOf(machine *gpu.Machine, m mode.Mode, served []servedMode, used usage.Node) map[string]devices.Load {
	loads := map[string]devices.Load{}
	for _, g := range machine.GPUs {
		u, units := used.GPU(g.UUID), g.MemoryUnits()
		takes := func(s servedMode) bool {
			_, unhealthy := s.unhealthy[g.UUID]
			return !unhealthy && u.Takes(s.mode, m, units, s.slots)
		}
		loads[g.UUID] = devices.Load{Units: u.Used(units), Full: !slices.ContainsFunc(served, takes)}
	}
	return loads
}
