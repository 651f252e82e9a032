// SPDX-License-Identifier: Apache-2.0

package publish

import (
	"time"

	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
)

// rereadLimit is for how long the GPUs may be read again: what they do not show then is gone.
const rereadLimit = retryInterval

// firstSeen is when a MIG instance was first known to be made for a claim, and what was read of the GPUs by then.
type firstSeen struct {
	at      time.Time
	machine *gpu.Machine
}

// madeNow are the instances that were made for claims. During an update the process before makes some after this one
// has read the GPUs: these are to be read again before one counts as gone. unseen says that one is not there, and may
// be when they are read next.
func (s snapshot) madeNow() (made map[string]firstSeen, unseen, reread bool) {
	if s.unread || s.unlisted != nil {
		return s.made, false, false
	}
	before := s.made
	s.made = map[string]firstSeen{}
	for _, h := range heldInstances(s.records) {
		uuid := h.GPU.UUID
		if !h.GPU.MIG.Made {
			continue
		}
		seen, known := before[uuid]
		if !known {
			seen = firstSeen{s.now, s.machine}
		}
		s.made[uuid] = seen
		if s.isUnseen(h.GPU) {
			unseen = true
			reread = reread || !known
		}
	}
	return s.made, unseen, reread
}
