// SPDX-License-Identifier: Apache-2.0

// Package offer reads what a node offers from its ResourceSlices, and what claims leave of it, as package score counts
// both.
package offer

import (
	"cmp"
	"iter"
	"slices"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/claim"
	"github.com/gpushare/dra-driver-gpushare/pkg/devices"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
	"github.com/gpushare/dra-driver-gpushare/pkg/mode"
	"github.com/gpushare/dra-driver-gpushare/pkg/placement/score"
	"github.com/gpushare/dra-driver-gpushare/pkg/scheduling"
)

// ModeOf is the bit of a device's mode in score.Modes; none for one that is no part of GPUs that pods use.
func ModeOf(d *resourceapi.Device) score.Modes {
	m := mode.Mode(ptr.Deref(d.Attributes[v1alpha1.AttrMode].StringValue, ""))
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
	gpus   []int // places in GPUs.all
	mode   score.Modes
	memory int64 // of a MIG instance, in GiB
}

// GPUs are those that a node publishes, as they are while no claim has any of them.
type GPUs struct {
	all   []score.GPU
	parts map[string]part
}

// Of reads the GPUs from a node's slices, which are of one generation.
func Of(published []*resourceapi.ResourceSlice) GPUs {
	o := GPUs{parts: map[string]part{}}
	at := map[int64]int{}
	place := func(index int64) int {
		i, is := at[index]
		if !is {
			i = len(o.all)
			at[index], o.all = i, append(o.all, score.GPU{Cores: gpu.WholeCores})
		}
		return i
	}
	for _, slice := range published {
		for i := range slice.Spec.Devices {
			d := &slice.Spec.Devices[i]
			p := part{mode: ModeOf(d)}
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
func (o *GPUs) read(d *resourceapi.Device, p *part) {
	g := &o.all[p.gpus[0]]
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

// Number is how many GPUs there are.
func (o *GPUs) Number() int { return len(o.all) }

// Left is what is left of the GPUs beside what claims have, which are allocated.
func (o *GPUs) Left(claims []*resourceapi.ResourceClaim) []score.GPU {
	gpus := slices.Clone(o.all)
	for r, p := range o.held(claims) {
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
	return gpus
}

// Closed returns a function that reports whether claims, which are allocated, keep a device from others: they have one
// of its GPUs whole, or have a part of one and the device is whole GPUs.
func (o *GPUs) Closed(claims []*resourceapi.ResourceClaim) func(device string) bool {
	held := make([]score.Modes, len(o.all))
	for _, p := range o.held(claims) {
		for _, i := range p.gpus {
			held[i] |= p.mode
		}
	}
	return func(device string) bool {
		p := o.parts[device]
		return slices.ContainsFunc(p.gpus, func(i int) bool {
			return held[i]&score.Whole != 0 || held[i] != 0 && p.mode == score.Whole
		})
	}
}

// held are the results of claims, which are allocated, that hold a part of the GPUs.
func (o *GPUs) held(claims []*resourceapi.ResourceClaim) iter.Seq2[*resourceapi.DeviceRequestAllocationResult, part] {
	return func(yield func(*resourceapi.DeviceRequestAllocationResult, part) bool) {
		for _, claim := range claims {
			results := claim.Status.Allocation.Devices.Results
			for i := range results {
				r := &results[i]
				p, ours := o.parts[r.Device]
				if ours && r.Driver == v1alpha1.DriverName && !ptr.Deref(r.AdminAccess, false) && !yield(r, p) {
					return
				}
			}
		}
	}
}

// granted is what pods with these allocations asked for, as far as the allocations tell: models that they named are not
// known any more.
func (o *GPUs) granted(results []resourceapi.DeviceRequestAllocationResult) (out []score.Request, gpus []int) {
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
		gpus = append(gpus, p.gpus...)
	}
	slices.Sort(gpus)
	return out, slices.Compact(gpus)
}

// Ask is what a pod that requests so much beside GPUs asks for.
func Ask(requests corev1.ResourceList, of []score.Request) score.Ask {
	return score.Ask{CPU: requests.Cpu().MilliValue(), Memory: requests.Memory().Value(), Requests: of}
}

// Placed is a pod on a node, with the claims by which it has GPUs of it, what it asked for as far as they tell, and the
// places of these GPUs.
type Placed struct {
	Pod    *corev1.Pod
	Claims []*resourceapi.ResourceClaim
	Ask    score.Ask
	GPUs   []int
}

// Placed are those of the pods on a node that were given some of its GPUs by these claims.
func (o *GPUs) Placed(pods []*corev1.Pod, claims []*resourceapi.ResourceClaim) []Placed {
	held := map[types.UID][]*resourceapi.ResourceClaim{}
	for _, claim := range claims {
		for _, user := range claim.Status.ReservedFor {
			held[user.UID] = append(held[user.UID], claim)
		}
	}
	var out []Placed
	for _, pod := range pods {
		var results []resourceapi.DeviceRequestAllocationResult
		for _, claim := range held[pod.UID] {
			results = append(results, claim.Status.Allocation.Devices.Results...)
		}
		if requests, gpus := o.granted(results); len(requests) > 0 {
			out = append(out, Placed{pod, held[pod.UID], Ask(scheduling.RequestsOf(pod), requests), gpus})
		}
	}
	return out
}

// Asks are what pods asked for, the oldest first, as an Index learns them.
func Asks(placed []Placed) []score.Ask {
	placed = slices.SortedFunc(slices.Values(placed), func(a, b Placed) int {
		return cmp.Or(a.Pod.CreationTimestamp.Compare(b.Pod.CreationTimestamp.Time), cmp.Compare(a.Pod.UID, b.Pod.UID))
	})
	asks := make([]score.Ask, 0, len(placed))
	for _, p := range placed {
		asks = append(asks, p.Ask)
	}
	return asks
}

// ByNode are the claims that were allocated some of a node's GPUs.
func ByNode(claims []*resourceapi.ResourceClaim) map[string][]*resourceapi.ResourceClaim {
	out := map[string][]*resourceapi.ResourceClaim{}
	for _, c := range claims {
		if node := claim.AllocatedFrom(c); node != "" {
			out[node] = append(out[node], c)
		}
	}
	return out
}
