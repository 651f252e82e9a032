// SPDX-License-Identifier: Apache-2.0

package audit

import "github.com/gpushare/dra-driver-gpushare/pkg/gpu"

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
