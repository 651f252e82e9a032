// SPDX-License-Identifier: Apache-2.0

package publish

import (
	"fmt"
	"slices"

	"github.com/gpushare/dra-driver-gpushare/pkg/claim"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
)

// Devices are named by the indices of their GPUs. If the driver counts one GPU less, as after a boot with a dead one,
// those behind it have other indices than before: claims keep the GPUs that they were granted, by UUID, and the
// scheduler counts what they hold by the old names, which are those of other GPUs now.

// renamed are the GPUs that claims hold, or parts of them, by other names than theirs, by UUID, with one of these
// names. They take no claims: the scheduler does not know that they are held. What has the name of a held device now
// takes fewer claims than it could, for the scheduler takes it for that. While the records cannot be listed, those
// count that could be listed last: no GPU opens by it.
func (s snapshot) renamed() map[string]string {
	names, records := map[string]string{}, s.records
	if s.unlisted != nil {
		records = s.listed
	}
	indices := map[string]int{}
	for _, g := range s.machine.All() {
		indices[g.UUID] = g.Index
	}
	for _, r := range records {
		for _, g := range r.Grants {
			uuid := g.GPU.UUID
			if g.GPU.MIG != nil {
				uuid = g.GPU.MIG.ParentUUID
			}
			if index, there := indices[uuid]; there && index != g.GPU.Index && !g.Admin {
				names[uuid] = fmt.Sprintf("gpu-%d", g.GPU.Index)
			}
		}
	}
	return names
}

// isRenamed reports whether the GPU that was granted has another name now, or another one has its name.
func (in given) isRenamed(granted claim.Grant) bool {
	return slices.ContainsFunc(in.machine.GPUs, func(g gpu.GPU) bool {
		return (g.UUID == granted.GPU.UUID) != (g.Index == granted.GPU.Index)
	})
}

// grantedHealth says what is wrong with one of the GPUs that were granted, whatever their names are now.
func (in given) grantedHealth(granted []claim.Grant) string {
	for _, g := range granted {
		if message := in.healthOf(g.GPU); message != "" {
			return message
		}
	}
	return ""
}

func (in given) healthOf(granted claim.GPU) string {
	if slices.ContainsFunc(in.machine.GPUs, func(g gpu.GPU) bool { return g.UUID == granted.UUID }) {
		return in.unhealthy[granted.UUID].Message
	}
	at := slices.IndexFunc(in.machine.Faults, func(f gpu.Fault) bool {
		return f.UUID == granted.UUID || f.UUID == "" && f.Index == granted.Index
	})
	if at >= 0 {
		return in.machine.Faults[at].Message
	}
	return gpuGone
}
