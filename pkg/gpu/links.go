// SPDX-License-Identifier: Apache-2.0

package gpu

// NVLinkGeneration is the NVLink generation that GPUs of an architecture speak, 0 if unknown.
func NVLinkGeneration(architecture string) int {
	switch architecture {
	case "Pascal":
		return 1
	case "Volta", "Turing":
		return 2
	case "Ampere":
		return 3
	case "Hopper":
		return 4
	case "Blackwell":
		return 5
	}
	return 0
}

// NVLink is the link between two GPUs by lanes of a generation: those between the two, and those that NVSwitches join.
func NVLink(a, b GPU, generation, direct, switched int) Link {
	lanes := direct + switched
	return Link{
		A: a.Index, B: b.Index, Kind: LinkNVLink, Lanes: lanes, Generation: generation, Switched: switched > 0,
		GBps: lanes * min(laneGBps(generation, a.ComputeCapability), laneGBps(generation, b.ComputeCapability)),
	}
}

// laneGBps is the nominal bandwidth of one lane, in GB/s and one direction, as
// NVIDIA states it in the whitepapers of the architectures. (What NVML and
// nvidia-smi call a link is a lane here.) An unknown generation counts as the
// slowest.
func laneGBps(generation int, computeCapability string) int {
	switch {
	case generation == 3 && computeCapability != "8.0":
		return 14 // GA102 and its like have half-width links: 14.0625 GB/s
	case generation <= 1:
		return 20
	case generation <= 4:
		return 25 // 2, 3 and 4: 4 makes a link of fewer, faster wires
	default:
		return 50
	}
}

// PCIeLink is the link between two GPUs whose paths meet at this level.
func PCIeLink(a, b GPU, level LinkKind) Link {
	return Link{A: a.Index, B: b.Index, Kind: level, GBps: pcieGBps[level]}
}

// pcieGBps only serves to rank the levels: all are slower than the slowest
// NVLink connection, and each is slower than the one before it.
var pcieGBps = map[LinkKind]int{LinkSameGPU: 13, LinkPIX: 12, LinkPXB: 11, LinkPHB: 10, LinkNode: 8, LinkSystem: 6}
