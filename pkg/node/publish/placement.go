// SPDX-License-Identifier: Apache-2.0

package publish

import (
	"context"
	"slices"
	"time"

	"k8s.io/klog/v2"

	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/claim"
	"github.com/gpushare/dra-driver-gpushare/pkg/deviceplugin"
	"github.com/gpushare/dra-driver-gpushare/pkg/devices"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
	"github.com/gpushare/dra-driver-gpushare/pkg/mode"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/health"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/state"
	"github.com/gpushare/dra-driver-gpushare/pkg/placement"
	"github.com/gpushare/dra-driver-gpushare/pkg/usage"
)

// layout is the order of the GPUs, by index, and, where shares are spread, what claims may
// have together of each in each mode, by UUID.
type layout struct {
	order  []int
	limits map[mode.Mode]map[string]gpu.Amount
}

// place decides on the order of the GPUs in mode m, and on what is held back of them. What
// was published stays as long as that makes no difference, for each write makes the
// scheduler look at all waiting pods again. heeds says that it goes by what a claim waits for,
// which is so for a while.
func (s snapshot) place(
	m mode.Mode,
	wanted mode.Placement,
	served []servedMode,
	reserved deviceplugin.Reserved,
) (next layout, heeds bool, err error) {
	if !m.Shared() && m != mode.Dynamic {
		return layout{order: devices.IndexOrder(s.machine)}, false, nil
	}
	records, err := s.prepared()
	if err != nil {
		return layout{}, false, err
	}
	// What orphans hold is reserved.
	records = slices.DeleteFunc(slices.Clone(records), func(r state.Record) bool {
		_, orphan := s.orphans[r.UID]
		return orphan
	})
	o := occupancy{machine: s.machine, nodeMode: m, served: served, used: usageOf(records, reserved),
		unhealthy: s.unhealthy, renamed: s.renamed()}
	o.counted = o.used
	if held := namesakes(s.machine, records); len(held) > 0 {
		o.counted = usageOf(slices.Concat(records, held), reserved)
	}
	gpus := o.gpus()
	if wanted != mode.Spread {
		return o.kept(s.layout, layout{order: placement.Packed(gpus)}), false, nil
	}
	next = layout{order: placement.Spread(gpus), limits: map[mode.Mode]map[string]gpu.Amount{}}
	waiting, heeds := s.annotation.wanted(s.now, records)
	for _, sm := range served {
		if !sm.mode.Shared() {
			continue
		}
		limits := map[string]gpu.Amount{}
		for i, limit := range placement.Limits(o.shared(sm), largest(records), waiting) {
			limits[s.machine.GPUs[i].UUID] = limit
		}
		next.limits[sm.mode] = limits
	}
	return o.kept(s.layout, next), heeds, nil
}

// occupancy is how far the GPUs of a node are used.
type occupancy struct {
	machine  *gpu.Machine
	nodeMode mode.Mode
	served   []servedMode
	// used is what is used of them, counted what the scheduler takes for used: see namesakes.
	used, counted usage.Node
	// unhealthy and renamed are the GPUs that are, by UUID: they take no claims, so that nobody has to
	// wait until they have caught up.
	unhealthy map[string]health.Unhealthy
	renamed   map[string]string
}

// gpus are the machine's, in its order. One on which no serving takes a further claim, if
// only the smallest, is full.
func (o occupancy) gpus() []placement.GPU {
	out := make([]placement.GPU, 0, len(o.machine.GPUs))
	for _, g := range o.machine.GPUs {
		full := !slices.ContainsFunc(o.served, func(sm servedMode) bool { return o.takes(sm, g) })
		out = append(out, o.used.GPU(g.UUID).Placed(g.Index, g.MemoryUnits(), full))
	}
	return out
}

func (o occupancy) takes(sm servedMode, g gpu.GPU) bool {
	_, unhealthy := o.unhealthy[g.UUID]
	_, renamed := o.renamed[g.UUID]
	return sm.whyClosed(g.UUID) == "" && !unhealthy && !renamed &&
		o.counted.GPU(g.UUID).Takes(sm.mode, o.nodeMode, g.MemoryUnits(), sm.slots)
}

// shared are the GPUs as a mode offers shares of them.
func (o occupancy) shared(sm servedMode) []placement.Shared {
	out := make([]placement.Shared, 0, len(o.machine.GPUs))
	for _, g := range o.machine.GPUs {
		u := o.used.GPU(g.UUID)
		room := u.Reserved.Left(g.MemoryUnits(), sm.slots)
		placed := u.Placed(g.Index, g.MemoryUnits(), !o.takes(sm, g))
		out = append(out, placement.Shared{
			GPU: placed, Room: room, Granted: o.granted(sm, g),
			ByName: o.counted.GPU(g.UUID).Placed(g.Index, g.MemoryUnits(), placed.Full).Used - placed.Used,
		})
	}
	return out
}

func (o occupancy) granted(sm servedMode, g gpu.GPU) gpu.Amount {
	u := o.counted.GPU(g.UUID)
	if u.Mode != sm.mode {
		return gpu.Amount{}
	}
	return gpu.Amount{Units: u.Units, Shares: u.Shares}
}

// kept is what was placed before where the next claims go by it as they would by what is
// next: GPUs that take any come in the same order and take as much.
func (o occupancy) kept(before, next layout) layout {
	if len(before.order) == len(next.order) && slices.Equal(o.effect(before), o.effect(next)) {
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
func (o occupancy) effect(p layout) []offered {
	var found []offered
	for _, index := range p.order {
		i := slices.IndexFunc(o.machine.GPUs, func(g gpu.GPU) bool { return g.Index == index })
		if i < 0 {
			return nil
		}
		g := o.machine.GPUs[i]
		for _, sm := range o.served {
			if !o.takes(sm, g) {
				continue
			}
			limit, limited := p.limits[sm.mode][g.UUID]
			if !limited {
				found = append(found, offered{index: index, mode: sm.mode})
			} else if more := placement.More(limit, o.granted(sm, g)); more != (gpu.Amount{}) {
				found = append(found, offered{index, sm.mode, more})
			}
		}
	}
	return found
}

// usageOf is what is used of the GPUs: by the records' claims, and by pods without a claim.
func usageOf(records []state.Record, reserved deviceplugin.Reserved) usage.Node {
	claims := make([]usage.Claim, 0, len(records))
	for _, r := range records {
		claims = append(claims, r.Usage())
	}
	return usage.Of(claims, reserved.GPU)
}

// namesakes are what claims hold of other GPUs, as if they held it of those that have the names of these now: the
// scheduler counts so. A GPU that is gone, or has another index than when it was granted, leaves its name to others.
func namesakes(m *gpu.Machine, records []state.Record) []state.Record {
	uuids := map[int]string{}
	for _, g := range m.GPUs {
		uuids[g.Index] = g.UUID
	}
	var out []state.Record
	for _, r := range records {
		for _, g := range r.Grants {
			uuid, there := uuids[g.GPU.Index]
			// An instance's device has a name of another kind.
			if there && uuid != g.GPU.UUID && g.GPU.MIG == nil {
				g.GPU.UUID = uuid
				out = append(out, state.Record{UID: r.UID, Grants: []claim.Grant{g}})
			}
		}
	}
	return out
}

// largest is the most that one claim has of one GPU that it shares.
func largest(records []state.Record) int64 {
	most := int64(0)
	for _, r := range records {
		units, cores := map[string]int64{}, map[string]int64{}
		for _, g := range r.Grants {
			if g.Mode.Shared() && !g.Admin {
				uuid := g.GPU.UUID
				units[uuid], cores[uuid] = units[uuid]+g.Units, cores[uuid]+g.CoresPercent
				most = max(most, units[uuid], placement.AsMemory(cores[uuid], g.GPU.Units()))
			}
		}
	}
	return most
}

// annotation is what gpu-compat-controller last said of who waits, and since when that is known. read says that it was
// looked for.
type annotation struct {
	read    bool
	text    string
	since   time.Time
	waiting placement.Waiting
}

// noteAnnotation notes what the node's annotation says now. What it says when it is first looked for may be of long
// ago, and the clock of who wrote it is another: who still waits is told of again within seconds.
func (p *Publisher) noteAnnotation(ctx context.Context, text string, now time.Time) {
	first := !p.annotation.read
	p.annotation = annotation{read: true, text: text, since: now}
	if text == "" || first {
		return
	}
	var err error
	if p.annotation.waiting, err = placement.DecodeWaiting(text); err != nil {
		klog.FromContext(ctx).Error(err, "The node's annotation is not understood", "annotation", v1alpha1.AnnotationWaiting)
	}
}

// wanted is what claims wait for that spreading shares would keep from them; it is false where
// there is nothing to go by, or not any more.
func (h annotation) wanted(now time.Time, records []state.Record) (placement.Wanted, bool) {
	granted := make([]string, 0, len(records))
	for _, r := range records {
		granted = append(granted, string(r.UID))
	}
	return h.waiting.Wanted(h.since, now, granted)
}
