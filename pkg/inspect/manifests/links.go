// SPDX-License-Identifier: Apache-2.0

package manifests

import (
	"slices"

	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
)

// link is the best connection between two GPUs, given also by their positions in the file, as
// pkg/gpu/nvml finds it.
func (f *machineFile) link(a, b gpu.GPU, positionA, positionB int) gpu.Link {
	out := gpu.Link{A: a.Index, B: b.Index}
	there, back := f.lanes(positionA, positionB), f.lanes(positionB, positionA)
	switched := min(f.lanesToSwitch(positionA), f.lanesToSwitch(positionB))
	if lanes := min(there, back) + switched; lanes > 0 {
		out.Kind, out.Lanes, out.Switched = gpu.LinkNVLink, lanes, switched > 0
		out.Generation = min(generation(a), generation(b))
		out.GBps = lanes * min(perLane(out.Generation, a), perLane(out.Generation, b))
		return out
	}
	out.Kind, out.GBps = f.pcie(&f.GPUs[positionA], &f.GPUs[positionB])
	return out
}

// lanes is how many a GPU has to another one.
func (f *machineFile) lanes(from, to int) int {
	n := 0
	for _, l := range f.NVLinks {
		switch {
		case len(l.GPUs) != 2:
		case l.GPUs[0] == from && l.GPUs[1] == to:
			n += l.Lanes
		case l.GPUs[1] == from && l.GPUs[0] == to && l.LanesBack != nil:
			n += *l.LanesBack
		case l.GPUs[1] == from && l.GPUs[0] == to:
			n += l.Lanes
		}
	}
	return n
}

func (f *machineFile) lanesToSwitch(position int) int {
	if lanes := f.GPUs[position].NVSwitchLanes; lanes != nil {
		return *lanes
	}
	return f.NVSwitchLanes
}

// generation is the NVLink generation of an architecture.
func generation(g gpu.GPU) int {
	return 1 + max(0, slices.IndexFunc([][]string{{"Pascal"}, {"Volta", "Turing"}, {"Ampere"}, {"Hopper"}, {"Blackwell"}},
		func(of []string) bool { return slices.Contains(of, g.Architecture) }))
}

// perLane is the bandwidth of a lane in GB/s.
func perLane(generation int, g gpu.GPU) int {
	switch {
	case generation == 3 && g.ComputeCapability != "8.0":
		return 14
	case generation <= 1:
		return 20
	case generation <= 4:
		return 25
	default:
		return 50
	}
}

// pcie is where the paths of two GPUs meet, with a figure that ranks it.
func (f *machineFile) pcie(a, b *machineGPU) (gpu.LinkKind, int) {
	if a.Root != b.Root {
		if a.NUMANode != nil && b.NUMANode != nil && *a.NUMANode == *b.NUMANode {
			return gpu.LinkNode, 8
		}
		return gpu.LinkSystem, 6
	}
	shared := 0
	for shared < min(len(a.Bridges), len(b.Bridges)) && a.Bridges[shared] == b.Bridges[shared] {
		shared++
	}
	switch below := max(len(a.Bridges), len(b.Bridges)) - shared; {
	case shared == 0:
		return gpu.LinkPHB, 10
	case below <= 1:
		return gpu.LinkPIX, 12
	default:
		return gpu.LinkPXB, 11
	}
}
