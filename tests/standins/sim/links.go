// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"slices"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock/server"
)

// toSwitch, as a lane's peer, is an NVSwitch.
const toSwitch = -1

// nvswitchBusID is where simulated NVSwitches sit; NVML tells a lane's remote
// end by address and by type, and only the type matters for a switch.
const nvswitchBusID = "0000:fe:00.0"

// lanes returns, for each GPU, what each of its NVLink lanes leads to: the
// position of another GPU, or toSwitch.
func (s *Spec) lanes() [][]int {
	lanes := make([][]int, len(s.GPUs))
	for _, l := range s.NVLinks {
		a, b := l.GPUs[0], l.GPUs[1]
		lanes[a] = append(lanes[a], slices.Repeat([]int{b}, l.Lanes)...)
		lanes[b] = append(lanes[b], slices.Repeat([]int{a}, l.back())...)
	}
	for i := range lanes {
		lanes[i] = append(lanes[i], slices.Repeat([]int{toSwitch}, s.switchLanes(i))...)
	}
	return lanes
}

func (s *Spec) switchLanes(g int) int {
	if lanes := s.GPUs[g].NVSwitchLanes; lanes != nil {
		return *lanes
	}
	return s.NVSwitchLanes
}

func (l NVLink) back() int {
	if l.LanesBack != nil {
		return *l.LanesBack
	}
	return l.Lanes
}

// setLanes makes the GPU answer for its NVLink lanes as the driver does: a
// GPU without NVLink answers NOT_SUPPORTED, a lane beyond the last one
// INVALID_ARGUMENT.
func setLanes(d *server.Device, lanes []int, gpus []*server.Device, version uint32) {
	check := func(lane int) nvml.Return {
		switch {
		case len(lanes) == 0:
			return nvml.ERROR_NOT_SUPPORTED
		case lane < 0 || lane >= len(lanes):
			return nvml.ERROR_INVALID_ARGUMENT
		}
		return nvml.SUCCESS
	}
	d.GetNvLinkStateFunc = func(lane int) (nvml.EnableState, nvml.Return) {
		if ret := check(lane); ret != nvml.SUCCESS {
			return nvml.FEATURE_DISABLED, ret
		}
		return nvml.FEATURE_ENABLED, nvml.SUCCESS
	}
	d.GetNvLinkVersionFunc = func(lane int) (uint32, nvml.Return) {
		return version, check(lane)
	}
	d.GetNvLinkRemoteDeviceTypeFunc = func(lane int) (nvml.IntNvLinkDeviceType, nvml.Return) {
		if ret := check(lane); ret != nvml.SUCCESS {
			return nvml.NVLINK_DEVICE_TYPE_UNKNOWN, ret
		}
		if lanes[lane] == toSwitch {
			return nvml.NVLINK_DEVICE_TYPE_SWITCH, nvml.SUCCESS
		}
		return nvml.NVLINK_DEVICE_TYPE_GPU, nvml.SUCCESS
	}
	d.GetNvLinkRemotePciInfoFunc = func(lane int) (nvml.PciInfo, nvml.Return) {
		if ret := check(lane); ret != nvml.SUCCESS {
			return nvml.PciInfo{}, ret
		}
		if lanes[lane] == toSwitch {
			return pciInfo(nvswitchBusID, 0), nvml.SUCCESS
		}
		peer := gpus[lanes[lane]]
		return pciInfo(peer.PciBusID, peer.Config.PciDeviceId), nvml.SUCCESS
	}
}

func (s *Spec) setTopology(d *server.Device, i int) {
	byUUID := make(map[string]int, len(s.GPUs))
	for j := range s.GPUs {
		byUUID[s.uuid(j)] = j
	}
	d.GetTopologyCommonAncestorFunc = func(other nvml.Device) (nvml.GpuTopologyLevel, nvml.Return) {
		peer, ok := other.(*server.Device)
		if !ok {
			return 0, nvml.ERROR_INVALID_ARGUMENT
		}
		j, ok := byUUID[peer.UUID]
		if !ok {
			return 0, nvml.ERROR_INVALID_ARGUMENT
		}
		return commonAncestor(s.GPUs[i], s.GPUs[j]), nvml.SUCCESS
	}
}

// commonAncestor is the PCIe level at which the paths of two GPUs meet, as
// nvmlDeviceGetTopologyCommonAncestor defines the levels.
func commonAncestor(a, b GPU) nvml.GpuTopologyLevel {
	if a.Root != b.Root {
		if a.NUMANode != nil && b.NUMANode != nil && *a.NUMANode == *b.NUMANode {
			return nvml.TOPOLOGY_NODE
		}
		return nvml.TOPOLOGY_SYSTEM
	}
	shared := 0
	for shared < min(len(a.Bridges), len(b.Bridges)) && a.Bridges[shared] == b.Bridges[shared] {
		shared++
	}
	switch below := max(len(a.Bridges), len(b.Bridges)) - shared; {
	case shared == 0:
		return nvml.TOPOLOGY_HOSTBRIDGE
	case below <= 1:
		// Each GPU hangs on a downstream port of one and the same switch.
		return nvml.TOPOLOGY_SINGLE
	default:
		return nvml.TOPOLOGY_MULTIPLE
	}
}
