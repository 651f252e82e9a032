// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"fmt"
	"maps"
	"slices"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
)

// migProfile is a profile of GPU instances, as NVML tells it.
type migProfile struct {
	// enum is NVML's number of the kind of profile, id the one that nvidia-smi shows.
	enum, id int
	name     string
	// slices are compute slices, size is in memory slices, most is how many instances there can be at once.
	slices, size, most int
	starts             []int
	memoryMiB          int
	sms                int
	// Copy engines, decoders, encoders, JPEG and OFA engines.
	engines  [5]int
	graphics bool
}

// migTables are the profiles of GPUs that can be cut, by the name that a machine file gives a model. Placements, ids,
// multiprocessors and engines are those that the "NVIDIA Multi-Instance GPU User Guide" shows of "nvidia-smi mig
// -lgip" and "-lgipp". The memory of a100-80's instances, and ids of A30 other than 14, are assumed. So is most of what
// is beside the names of h200-141, b200 and b300: of H200 memory is known of 1g, 2g and 7g, of B200 the
// multiprocessors of 1g and the copy engines.
var migTables = map[string][]migProfile{
	"a100-40": sevenSlices(
		[7]string{"1g.5gb", "1g.5gb+me", "1g.10gb", "2g.10gb", "3g.20gb", "4g.20gb", "7g.40gb"},
		[7]int{4864, 4864, 9856, 9856, 19968, 19968, 40192}, ampereSMs, ampereEngines),
	"a100-80": sevenSlices(
		[7]string{"1g.10gb", "1g.10gb+me", "1g.20gb", "2g.20gb", "3g.40gb", "4g.40gb", "7g.80gb"},
		[7]int{9728, 9728, 19968, 19968, 40192, 40192, 80896}, ampereSMs, ampereEngines),
	"h100-80": sevenSlices(
		[7]string{"1g.10gb", "1g.10gb+me", "1g.20gb", "2g.20gb", "3g.40gb", "4g.40gb", "7g.80gb"},
		[7]int{9984, 9984, 20096, 20096, 40448, 40448, 81152}, hopperSMs, hopperEngines),
	"h200-141": sevenSlices(
		[7]string{"1g.18gb", "1g.18gb+me", "1g.35gb", "2g.35gb", "3g.71gb", "4g.71gb", "7g.141gb"},
		[7]int{16384, 16384, 33280, 33280, 71424, 71424, 143360}, hopperSMs, hopperEngines),
	"b200": sevenSlices(
		[7]string{"1g.23gb", "1g.23gb+me", "1g.45gb", "2g.45gb", "3g.90gb", "4g.90gb", "7g.180gb"},
		[7]int{22528, 22528, 45568, 45568, 91648, 91648, 183296}, blackwellSMs, blackwellEngines),
	"b300": sevenSlices(
		[7]string{"1g.34gb", "1g.34gb+me", "1g.67gb", "2g.67gb", "3g.135gb", "4g.135gb", "7g.269gb"},
		[7]int{33792, 33792, 68096, 68096, 137216, 137216, 274432}, blackwellSMs, blackwellEngines),
	"a30": {
		{nvml.GPU_INSTANCE_PROFILE_1_SLICE, 14, "1g.6gb", 1, 1, 4, []int{0, 1, 2, 3}, 5836, 14, [5]int{1, 0, 0, 0, 0}, false},
		{nvml.GPU_INSTANCE_PROFILE_1_SLICE_REV1, 21, "1g.6gb+me", 1, 1, 1, []int{0, 1, 2, 3}, 5836, 14,
			[5]int{1, 1, 0, 1, 1}, false},
		{nvml.GPU_INSTANCE_PROFILE_2_SLICE, 5, "2g.12gb", 2, 2, 2, []int{0, 2}, 11672, 28, [5]int{2, 2, 0, 0, 0}, false},
		{nvml.GPU_INSTANCE_PROFILE_2_SLICE_REV1, 6, "2g.12gb+me", 2, 2, 1, []int{0, 2}, 11672, 28, [5]int{2, 2, 0, 1, 1},
			false},
		{nvml.GPU_INSTANCE_PROFILE_4_SLICE, 0, "4g.24gb", 4, 4, 1, []int{0}, 23344, 56, [5]int{4, 4, 0, 1, 1}, false},
	},
	"rtx-pro-6000": {
		{nvml.GPU_INSTANCE_PROFILE_1_SLICE, 14, "1g.24gb", 1, 3, 4, []int{0, 3, 6, 9}, 24192, 46,
			[5]int{1, 1, 1, 1, 0}, false},
		{nvml.GPU_INSTANCE_PROFILE_1_SLICE_REV1, 21, "1g.24gb+me", 1, 3, 1, []int{0, 3, 6, 9}, 24192, 46,
			[5]int{1, 1, 1, 1, 1}, false},
		{nvml.GPU_INSTANCE_PROFILE_1_SLICE_GFX, 47, "1g.24gb+gfx", 1, 3, 4, []int{0, 3, 6, 9}, 24192, 46,
			[5]int{1, 1, 1, 1, 0}, true},
		{nvml.GPU_INSTANCE_PROFILE_1_SLICE_ALL_ME, 65, "1g.24gb+me.all", 1, 3, 1, []int{0, 3, 6, 9}, 24192, 46,
			[5]int{1, 4, 4, 4, 1}, false},
		{nvml.GPU_INSTANCE_PROFILE_1_SLICE_NO_ME, 67, "1g.24gb-me", 1, 3, 4, []int{0, 3, 6, 9}, 24192, 46,
			[5]int{1, 0, 0, 0, 0}, false},
		{nvml.GPU_INSTANCE_PROFILE_2_SLICE, 5, "2g.48gb", 2, 6, 2, []int{0, 6}, 48512, 94, [5]int{2, 2, 2, 2, 0}, false},
		{nvml.GPU_INSTANCE_PROFILE_4_SLICE, 0, "4g.96gb", 4, 12, 1, []int{0}, 97280, 188, [5]int{4, 4, 4, 4, 1}, false},
	},
}

var (
	upTo6         = []int{0, 1, 2, 3, 4, 5, 6}
	ampereSMs     = [7]int{14, 14, 14, 28, 42, 56, 98}
	ampereEngines = [7][5]int{{1, 0, 0, 0, 0}, {1, 1, 0, 1, 1}, {1, 1, 0, 0, 0}, {2, 1, 0, 0, 0}, {3, 2, 0, 0, 0},
		{4, 2, 0, 0, 0}, {7, 5, 0, 1, 1}}
	hopperSMs     = [7]int{16, 16, 26, 32, 60, 64, 132}
	hopperEngines = [7][5]int{{1, 1, 0, 1, 0}, {1, 1, 0, 1, 1}, {1, 1, 0, 1, 0}, {2, 2, 0, 2, 0}, {3, 3, 0, 3, 0},
		{4, 4, 0, 4, 0}, {8, 7, 0, 7, 1}}
	blackwellSMs     = [7]int{18, 18, 18, 36, 54, 72, 148}
	blackwellEngines = [7][5]int{{2, 1, 0, 1, 0}, {2, 1, 0, 1, 1}, {2, 1, 0, 1, 0}, {3, 2, 0, 2, 0}, {6, 3, 0, 3, 0},
		{8, 4, 0, 4, 0}, {16, 7, 0, 7, 1}}
)

// sevenSlices is the family of A100 and H100: seven compute slices, eight memory slices.
func sevenSlices(names [7]string, memory, sms [7]int, engines [7][5]int) []migProfile {
	table := []migProfile{
		{enum: nvml.GPU_INSTANCE_PROFILE_1_SLICE, id: 19, slices: 1, size: 1, most: 7, starts: upTo6},
		{enum: nvml.GPU_INSTANCE_PROFILE_1_SLICE_REV1, id: 20, slices: 1, size: 1, most: 1, starts: upTo6},
		{enum: nvml.GPU_INSTANCE_PROFILE_1_SLICE_REV2, id: 15, slices: 1, size: 2, most: 4, starts: []int{0, 2, 4, 6}},
		{enum: nvml.GPU_INSTANCE_PROFILE_2_SLICE, id: 14, slices: 2, size: 2, most: 3, starts: []int{0, 2, 4}},
		{enum: nvml.GPU_INSTANCE_PROFILE_3_SLICE, id: 9, slices: 3, size: 4, most: 2, starts: []int{0, 4}},
		{enum: nvml.GPU_INSTANCE_PROFILE_4_SLICE, id: 5, slices: 4, size: 4, most: 1, starts: []int{0}},
		{enum: nvml.GPU_INSTANCE_PROFILE_7_SLICE, id: 0, slices: 7, size: 8, most: 1, starts: []int{0}},
	}
	for i := range table {
		table[i].name, table[i].memoryMiB, table[i].sms, table[i].engines = names[i], memory[i], sms[i], engines[i]
	}
	return table
}

// MIGTables lists what Model.MIGProfiles can be.
func MIGTables() []string { return slices.Sorted(maps.Keys(migTables)) }

// MIGProfile is a profile of a table, for those who compare it with what a driver tells.
type MIGProfile struct {
	gpu.Profile
	// GIs are the ids of instances at Starts.
	GIs []int
}

// MIGTable is the table of that name, in the order in which NVML numbers its profiles; nil if there is none.
func MIGTable(name string) []MIGProfile {
	var out []MIGProfile
	for _, p := range slices.SortedFunc(slices.Values(migTables[name]),
		func(a, b migProfile) int { return a.enum - b.enum }) {
		of := MIGProfile{Profile: gpu.Profile{Starts: slices.Clone(p.starts), Count: p.most, Kind: gpu.Instance{
			InstanceID: gpu.InstanceID{GI: gpu.NoCI, CI: gpu.NoCI}, ProfileID: p.id, Profile: p.name, Size: p.size,
			MemoryMiB: int64(p.memoryMiB), SMCount: p.sms, CopyEngines: p.engines[0], Decoders: p.engines[1],
			Encoders: p.engines[2], JPEGs: p.engines[3], OFAs: p.engines[4], Graphics: p.graphics}}}
		for _, start := range p.starts {
			of.GIs = append(of.GIs, p.gpuInstanceID(migTables[name], start))
		}
		out = append(out, of)
	}
	return out
}

// gpuInstanceID is the driver's id of an instance that finds it free: it follows from profile and place, so another
// instance there has it again. Of the double-memory profile, and of GPUs with four slices, it is assumed.
func (p migProfile) gpuInstanceID(table []migProfile, start int) int {
	if !slices.ContainsFunc(table, func(p migProfile) bool { return p.slices == 7 }) {
		// One of four, then two, then one.
		at := slices.Index(p.starts, start)
		return map[int]int{1: 3, 2: 1, 4: 0}[p.slices] + at
	}
	switch p.size {
	case 1:
		return 7 + start
	case 2:
		return 3 + start/2
	case 4:
		return map[int]int{0: 2, 4: 1}[start] - (p.slices - 3)
	}
	return 0
}

// ciProfile is a profile of compute instances in a GPU instance.
type ciProfile struct{ enum, slices int }

// ciProfiles are those of a GPU instance, of which the full ones have as many slices as it has. Those of 7 slices
// have two of these, as those of 1 have.
func (p migProfile) ciProfiles() []ciProfile {
	all := []ciProfile{
		{nvml.COMPUTE_INSTANCE_PROFILE_1_SLICE, 1}, {nvml.COMPUTE_INSTANCE_PROFILE_2_SLICE, 2},
		{nvml.COMPUTE_INSTANCE_PROFILE_3_SLICE, 3}, {nvml.COMPUTE_INSTANCE_PROFILE_4_SLICE, 4},
		{nvml.COMPUTE_INSTANCE_PROFILE_7_SLICE, 7}, {nvml.COMPUTE_INSTANCE_PROFILE_1_SLICE_REV1, 1},
		{nvml.COMPUTE_INSTANCE_PROFILE_7_SLICE_NVL, 7},
	}
	return slices.DeleteFunc(all, func(c ciProfile) bool { return c.slices > p.slices })
}

// name is that of the MIG device of a compute instance: smaller than its GPU instance, it says so.
func (p migProfile) deviceName(computeSlices int) string {
	if computeSlices == p.slices {
		return p.name
	}
	return fmt.Sprintf("%dc.%s", computeSlices, p.name)
}
