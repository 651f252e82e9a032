// SPDX-License-Identifier: Apache-2.0

package audit

import (
	"slices"
	"strings"

	"github.com/gpushare/dra-driver-gpushare/pkg/claim"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
)

// sharing is what claims grant of a GPU, and the containers that hold it together: some of
// what each was granted is another's, too.
type sharing struct {
	granted
	holders []*holder
}

// sharesOf puts those together that share what they were granted.
func sharesOf(holders []*holder) []sharing {
	var out []sharing
	for _, h := range holders {
		if len(h.granted.grants) == 0 {
			continue
		}
		joined := sharing{h.granted, []*holder{h}}
		var apart []sharing
		for _, s := range out {
			if s.overlaps(joined.granted) {
				joined = sharing{s.plus(joined.granted), append(s.holders, joined.holders...)}
			} else {
				apart = append(apart, s)
			}
		}
		out = append(apart, joined)
	}
	return out
}

// findings are the containers that hold more than was granted: those that do alone and, if
// the others do together, each of them.
func (s sharing) findings(overheadMiB int64) []Finding {
	if !s.limited() {
		return nil
	}
	var out []Finding
	var others []*holder
	var all, together int64
	processes := 0
	for _, h := range s.holders {
		held := h.usedMiB()
		all += held
		if held <= h.granted.limitMiB(len(h.processes), overheadMiB) {
			others = append(others, h)
			together += held
			processes += len(h.processes)
		} else if h.pod != nil {
			out = append(out, h.overShare("it was granted %d MiB of it", h.granted.mib()))
		}
	}
	if together <= s.limitMiB(processes, overheadMiB) {
		return out
	}
	for _, h := range others {
		if h.pod != nil {
			out = append(out, h.overShare("%d containers share %d GiB of it by claim %s, and hold %d MiB", len(s.holders),
				s.units(), strings.Join(s.claims, ", "), all))
		}
	}
	return out
}

func (h *holder) overShare(format string, args ...any) Finding {
	f := h.finding(OverShare, "holds %d MiB of GPU %d in %s; "+format,
		append([]any{h.usedMiB(), h.use.Index, h.count()}, args...)...)
	f.Unread = h.granted.unread
	return f
}

// manySlots is the finding of a container that has more of the processes that MPS serves on the GPU than its share's
// part, by memory, while at most a quarter of them is left.
func (in judge) manySlots(h *holder) (Finding, bool) {
	if in.ClientSlots == 0 || !h.granted.byMPS() || 4*len(h.use.Processes) < 3*in.ClientSlots {
		return Finding{}, false
	}
	units := gpu.GPU{MemoryMiB: h.granted.grants[0].GPU.MemoryMiB}.MemoryUnits()
	part := max(1, int64(in.ClientSlots)*h.granted.units()/max(1, units))
	if int64(len(h.processes)) <= part {
		return Finding{}, false
	}
	return h.finding(ClientSlots, "has %s on GPU %d, where MPS serves %d, and its share of %d GiB has %d of these; all "+
		"together have %d", h.count(), h.use.Index, in.ClientSlots, h.granted.units(), part, len(h.use.Processes)), true
}

// limitMiB is how much so many processes may hold together before it is said.
func (g granted) limitMiB(processes int, overheadMiB int64) int64 {
	limit := g.mib() + slackMiB*int64(max(2, processes))
	if g.byMPS() || slices.ContainsFunc(g.grants, func(g claim.Grant) bool { return g.KernelMemory }) {
		limit += overheadMiB
	}
	return limit
}

// units are the GiB that were granted.
func (g granted) units() int64 {
	var sum int64
	for _, grant := range g.grants {
		sum += grant.Units
	}
	return sum
}

func (g granted) overlaps(other granted) bool {
	return g.namespace == other.namespace &&
		slices.ContainsFunc(g.claims, func(name string) bool { return slices.Contains(other.claims, name) }) &&
		slices.ContainsFunc(g.grants, func(one claim.Grant) bool {
			return slices.ContainsFunc(other.grants, one.SameResult)
		})
}

// plus is what both were granted together.
func (g granted) plus(other granted) granted {
	out := granted{namespace: g.namespace, grants: slices.Clone(g.grants), claims: slices.Concat(g.claims, other.claims)}
	for _, grant := range other.grants {
		if !slices.ContainsFunc(out.grants, grant.SameResult) {
			out.grants = append(out.grants, grant)
		}
	}
	slices.Sort(out.claims)
	out.claims = slices.Compact(out.claims)
	return out
}
