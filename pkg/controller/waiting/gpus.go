// SPDX-License-Identifier: Apache-2.0

package waiting

import (
	"slices"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/utils/ptr"

	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/devices"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
	"github.com/gpushare/dra-driver-gpushare/pkg/mode"
	"github.com/gpushare/dra-driver-gpushare/pkg/placement/score"
	"github.com/gpushare/dra-driver-gpushare/pkg/scheduling"
)

// modeOf is the bit of a mode in score.Modes; none for one whose devices are no part of GPUs that pods use.
func modeOf(m mode.Mode) score.Modes {
	switch m {
	case mode.Exclusive, mode.Topology:
		return score.Whole
	case mode.Monitor:
		return 0
	}
	for i, other := range []mode.Mode{mode.Share, mode.CGPU, mode.CoreMem, mode.MPS, mode.MIG} {
		if m == other {
			return score.Whole << (i + 1)
		}
	}
	return 0
}

// part is what a device is of its node's GPUs.
type part struct {
	gpus   []int // places in offer.gpus
	mode   score.Modes
	memory int64 // of a MIG instance, in GiB
}

// offer is what a node publishes, as the score counts it: the GPUs as they are while no claim has any of them.
type offer struct {
	gpus  []score.GPU
	parts map[string]part
}

// offerOf reads an offer from a node's slices.
func offerOf(published []*resourceapi.ResourceSlice) offer {
	o := offer{parts: map[string]part{}}
	at := map[int64]int{}
	place := func(index int64) int {
		i, is := at[index]
		if !is {
			i = len(o.gpus)
			at[index], o.gpus = i, append(o.gpus, score.GPU{Cores: gpu.WholeCores})
		}
		return i
	}
	for _, slice := range published {
		for i := range slice.Spec.Devices {
			d := &slice.Spec.Devices[i]
			p := part{mode: deviceMode(d)}
			if p.mode == 0 {
				continue
			}
			switch index := d.Attributes[v1alpha1.AttrIndex].IntValue; {
			case scheduling.IsSet(d):
				indices, _, err := devices.ParseDeviceName(d.Name)
				if err != nil {
					continue
				}
				for _, index := range indices {
					p.gpus = append(p.gpus, place(int64(index)))
				}
			case index != nil:
				p.gpus = []int{place(*index)}
				o.read(d, &p)
			default:
				continue
			}
			o.parts[d.Name] = p
		}
	}
	return o
}

// read notes what a device that is one GPU, or a part of one, says of it.
func (o *offer) read(d *resourceapi.Device, p *part) {
	g := &o.gpus[p.gpus[0]]
	g.Model = ptr.Deref(d.Attributes[v1alpha1.AttrModel].StringValue, "")
	units := gpu.GPU{MemoryMiB: ptr.Deref(d.Attributes[v1alpha1.AttrMemoryMiB].IntValue, 0)}.MemoryUnits()
	switch {
	case scheduling.IsPlacement(d): // the largest instance is all of the GPU
		p.memory = units
		g.Memory = max(g.Memory, units)
		g.Free = g.Memory
	case scheduling.IsInstance(d):
		p.memory = units
		g.Memory += units
		g.Free = g.Memory
	default:
		free := units
		if memory, is := devices.Unlimited(d)[v1alpha1.CapMemory]; is && ptr.Deref(d.AllowMultipleAllocations, false) {
			free = memory.Value.Value() / devices.GiB
		}
		if g.Memory == 0 || free < g.Free {
			g.Free = free
		}
		g.Memory = units
	}
	if !slices.ContainsFunc(d.Taints, closes) {
		g.Modes |= p.mode
	}
}

// closes reports whether a taint keeps claims from a device.
func closes(t resourceapi.DeviceTaint) bool {
	return t.Effect == resourceapi.DeviceTaintEffectNoSchedule || t.Effect == resourceapi.DeviceTaintEffectNoExecute
}

// left is what is left of the GPUs beside what claims have.
func (o *offer) left(claims []*resourceapi.ResourceClaim) []score.GPU {
	gpus := slices.Clone(o.gpus)
	for _, claim := range claims {
		for _, r := range claim.Status.Allocation.Devices.Results {
			p, ours := o.parts[r.Device]
			if !ours || r.Driver != v1alpha1.DriverName || ptr.Deref(r.AdminAccess, false) {
				continue
			}
			for _, i := range p.gpus {
				g := &gpus[i]
				g.Modes &= p.mode
				switch {
				case p.mode == score.Whole:
					g.Free, g.Cores = 0, 0
				case p.memory > 0:
					g.Free = max(0, g.Free-p.memory)
				default:
					memory, cores := r.ConsumedCapacity[v1alpha1.CapMemory], r.ConsumedCapacity[v1alpha1.CapCores]
					g.Free, g.Cores = max(0, g.Free-memory.Value()/devices.GiB), max(0, g.Cores-cores.Value())
				}
			}
		}
	}
	return gpus
}

// granted is what pods with these allocations asked for, as far as the allocations tell: models that they named are not
// known any more.
func (o *offer) granted(results []resourceapi.DeviceRequestAllocationResult) []score.Request {
	var out []score.Request
	for _, r := range results {
		p, ours := o.parts[r.Device]
		if !ours || r.Driver != v1alpha1.DriverName || ptr.Deref(r.AdminAccess, false) {
			continue
		}
		memory, cores := r.ConsumedCapacity[v1alpha1.CapMemory], r.ConsumedCapacity[v1alpha1.CapCores]
		request := score.Request{Mode: p.mode, Memory: max(p.memory, memory.Value()/devices.GiB), Cores: cores.Value()}
		i := slices.IndexFunc(out, func(other score.Request) bool {
			return other.Mode == request.Mode && other.Memory == request.Memory && other.Cores == request.Cores
		})
		if i < 0 {
			i, out = len(out), append(out, request)
		}
		out[i].Count += len(p.gpus)
	}
	return out
}
