// SPDX-License-Identifier: Apache-2.0

package manifests

import "github.com/gpushare/dra-driver-gpushare/pkg/gpu"

// link is the best connection between two GPUs, given also by their positions in the file, as
// pkg/gpu/nvml finds it.
func (f *machineFile) link(a, b gpu.GPU, positionA, positionB int) gpu.Link {
	direct := min(f.lanes(positionA, positionB), f.lanes(positionB, positionA))
	if switched := min(f.lanesToSwitch(positionA), f.lanesToSwitch(positionB)); direct+switched > 0 {
		generation := min(gpu.NVLinkGeneration(a.Architecture), gpu.NVLinkGeneration(b.Architecture))
		return gpu.NVLink(a, b, generation, direct, switched)
	}
	return gpu.PCIeLink(a, b, level(&f.GPUs[positionA], &f.GPUs[positionB]))
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

// level is where the paths of two GPUs meet.
func level(a, b *machineGPU) gpu.LinkKind {
	if a.Root != b.Root {
		if a.NUMANode != nil && b.NUMANode != nil && *a.NUMANode == *b.NUMANode {
			return gpu.LinkNode
		}
		return gpu.LinkSystem
	}
	shared := 0
	for shared < min(len(a.Bridges), len(b.Bridges)) && a.Bridges[shared] == b.Bridges[shared] {
		shared++
	}
	switch below := max(len(a.Bridges), len(b.Bridges)) - shared; {
	case shared == 0:
		return gpu.LinkPHB
	case below <= 1:
		return gpu.LinkPIX
	default:
		return gpu.LinkPXB
	}
}
