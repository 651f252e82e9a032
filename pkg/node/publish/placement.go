// SPDX-License-Identifier: Apache-2.0

package publish

import (
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/gpushare/dra-driver-gpushare/pkg/claim"
	"github.com/gpushare/dra-driver-gpushare/pkg/devices"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
	"github.com/gpushare/dra-driver-gpushare/pkg/held"
	"github.com/gpushare/dra-driver-gpushare/pkg/mode"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/state"
	"github.com/gpushare/dra-driver-gpushare/pkg/placement"
	"github.com/gpushare/dra-driver-gpushare/pkg/usage"
)

// place decides on the order of the GPUs in mode m, and on what is held back of them. What
// was published stays as long as that makes no difference, for each write makes the
// scheduler look at all waiting pods again. heeds is whether it depends on a claim that waits,
// which is so for a while.
func (s snapshot) place(
	m mode.Mode,
	wanted mode.Placement,
	served []servedMode,
	reserved held.Reserved,
) (next usage.Layout, heeds bool, err error) {
	if !m.Shared() && m != mode.Dynamic {
		return usage.Layout{Order: devices.IndexOrder(s.machine)}, false, nil
	}
	records, err := s.prepared()
	if err != nil {
		return usage.Layout{}, false, err
	}
	// What orphans hold is reserved.
	records = slices.DeleteFunc(slices.Clone(records), func(r state.Record) bool {
		_, orphan := s.orphans[r.UID]
		return orphan
	})
	claims := claimsOf(records)
	o := usage.Occupancy{GPUs: s.machine.GPUs, Mode: m, Served: s.servings(served), Used: usage.Of(claims, reserved.GPU)}
	o.Counted = o.Used
	if held := namesakes(s.machine, records); len(held) > 0 {
		o.Counted = usage.Of(slices.Concat(claims, claimsOf(held)), reserved.GPU)
	}
	if wanted != mode.Spread {
		return o.Kept(s.layout, o.Packed()), false, nil
	}
	waiting, heeds := s.wanted()
	return o.Kept(s.layout, o.Spread(usage.Largest(claims), waiting)), heeds, nil
}

// servings are the modes that take claims. GPUs that are unhealthy or renamed take none, so that nobody has to wait
// until they have caught up.
func (s snapshot) servings(served []servedMode) []usage.Serving {
	renamed, out := s.renamed(), make([]usage.Serving, 0, len(served))
	for _, sm := range served {
		out = append(out, usage.Serving{Mode: sm.mode, Slots: sm.slots, Closed: func(uuid string) bool {
			_, unhealthy := s.unhealthy[uuid]
			_, other := renamed[uuid]
			return sm.whyClosed(uuid) != "" || unhealthy || other
		}})
	}
	return out
}

// claimsOf are the records' claims as usage is added up.
func claimsOf(records []state.Record) []usage.Claim {
	claims := make([]usage.Claim, 0, len(records))
	for _, r := range records {
		claims = append(claims, r.Usage())
	}
	return claims
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

// annotation is what gpu-compat-controller last said of who waits, and since when that is known. read says that it was
// looked for.
type annotation struct {
	read    bool
	text    string
	since   time.Time
	waiting placement.Waiting
}

// next is what the node's annotation says now. What it says when it is first looked for may be of long
// ago, and the clock of who wrote it is another: the node is told again of a pod that still waits.
func (a annotation) next(text string, now time.Time) (_ annotation, err error) {
	said := annotation{read: true, text: text, since: now}
	if text != "" && a.read {
		said.waiting, err = placement.DecodeWaiting(text)
	}
	return said, err
}

// heeded is for how long the node heeds what it was told.
const heeded = 10 * time.Second

// waits reports whether the node was told just now of a claim that waits.
func (a annotation) waits(now time.Time) bool {
	return a.waiting.Claim != "" && now.Sub(a.since) < heeded
}

// lifting is when the claims of a node whose shares are spread last changed, and what it lifted for those that wait.
type lifting struct {
	claims  []types.UID
	changed time.Time
	placement.Lifts
}

// next is the lifting of a node with these claims now.
func (l lifting) next(waits bool, records []state.Record, now time.Time) lifting {
	claims := make([]types.UID, 0, len(records))
	for _, r := range records {
		claims = append(claims, r.UID)
	}
	if l.changed.IsZero() || !slices.Equal(l.claims, claims) {
		l.claims, l.changed = claims, now
	}
	l.Lifts = l.Next(waits, l.changed, now)
	return l
}

// wanted is what claims wait for that spreading shares would keep from them; it is false where
// the node was told of none, or that is long ago.
func (s snapshot) wanted() (placement.Wanted, bool) {
	w := placement.Wanted{Lifted: s.lifting.Shares(s.now)}
	waits := s.annotation.waits(s.now)
	if waits || w.Lifted > 0 {
		w.One = gpu.Amount{Units: s.annotation.waiting.GiB, Shares: s.annotation.waiting.Shares}
	}
	return w, waits || w.Lifted > 0
}
