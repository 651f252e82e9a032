// SPDX-License-Identifier: Apache-2.0

package publish

import (
	"time"

	"github.com/gpushare/dra-driver-gpushare/internal/signal"
	"github.com/gpushare/dra-driver-gpushare/pkg/claim"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
)

// rereadLimit is for how long the GPUs may be read again: what they do not show then is gone.
const rereadLimit = retryInterval

// firstSeen is when a MIG instance was first known to be made for a claim, and what was read of the GPUs by then.
type firstSeen struct {
	at      time.Time
	machine *gpu.Machine
}

// noteMade notes the instances that were made for claims. During an update the process before makes some after this one
// has read the GPUs: these are read again before one counts as gone.
func (p *Publisher) noteMade(s *snapshot) {
	if s.unread || s.unlisted != nil {
		return
	}
	before, reread := p.made, false
	p.made = map[string]firstSeen{}
	s.made = p.made
	for _, h := range heldInstances(s.records) {
		uuid := h.GPU.UUID
		if !h.GPU.MIG.Made {
			continue
		}
		seen, known := before[uuid]
		if !known {
			seen = firstSeen{s.now, s.machine}
		}
		p.made[uuid] = seen
		if s.isUnseen(h.GPU) {
			s.asked.again = true
			reread = reread || !known
		}
	}
	if reread {
		signal.Send(p.Rescan)
	}
}

// gone says why an instance that a claim holds is not what it was when it was granted; empty if it is, or that is not
// known yet.
func (s snapshot) gone(g claim.GPU) string {
	if s.isUnseen(g) {
		return ""
	}
	return g.Gone(s.machine)
}

// isUnseen reports whether the instance is not there and may have been made since the GPUs were read.
func (s snapshot) isUnseen(g claim.GPU) bool {
	seen, known := s.made[g.UUID]
	return known && seen.machine == s.machine && s.now.Sub(seen.at) < rereadLimit && g.Gone(s.machine) != ""
}
