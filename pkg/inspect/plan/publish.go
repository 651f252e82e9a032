// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"cmp"
	"maps"
	"slices"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/ptr"

	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/claim"
	"github.com/gpushare/dra-driver-gpushare/pkg/devices"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
	"github.com/gpushare/dra-driver-gpushare/pkg/mode"
	"github.com/gpushare/dra-driver-gpushare/pkg/placement"
	"github.com/gpushare/dra-driver-gpushare/pkg/scheduling"
	"github.com/gpushare/dra-driver-gpushare/pkg/usage"
)

// publishedAfter are the slices as the driver publishes them when a node's GPUs are used as
// the claims say: in the order of its placement, with what that holds back. It decides by the
// same functions (pkg/usage, pkg/placement).
func publishedAfter(published []*resourceapi.ResourceSlice, claims []*resourceapi.ResourceClaim,
	node string) []*resourceapi.ResourceSlice {
	pool := v1alpha1.PoolName(node)
	out := slices.Clone(published)
	var own []int
	for i, slice := range out {
		if slice.Spec.Driver == v1alpha1.DriverName && slice.Spec.Pool.Name == pool && len(slice.Spec.Devices) > 0 {
			own = append(own, i)
		}
	}
	// The scheduler goes through a pool's slices by their names.
	slices.SortFunc(own, func(a, b int) int { return cmp.Compare(out[a].Name, out[b].Name) })
	var all []resourceapi.Device
	for _, i := range own {
		all = append(all, out[i].Spec.Devices...)
	}
	if !slices.ContainsFunc(all, func(d resourceapi.Device) bool { return ptr.Deref(d.AllowMultipleAllocations, false) }) {
		return out // whole GPUs stay in the order of their indices
	}
	gpus, largest := gpusOf(all, claims, pool)
	placed := make([]placement.GPU, 0, len(gpus))
	for index, g := range gpus {
		placed = append(placed, g.Placed(index, unitsOf(g.devices[0]), !slices.ContainsFunc(g.devices, g.takes)))
	}
	order := placement.Packed(placed)
	if slices.ContainsFunc(all, scheduling.Spread) {
		order = placement.Spread(placed)
		limit(all, gpus, largest)
	}
	rank := func(d resourceapi.Device) int {
		switch modeOf(&d) {
		case mode.MIG:
			return len(order) // in an order of their own
		case mode.Monitor:
			return len(order) + 1
		}
		return slices.Index(order, indexOf(&d))
	}
	slices.SortStableFunc(all, func(a, b resourceapi.Device) int { return cmp.Compare(rank(a), rank(b)) })
	for _, i := range own {
		slice := *out[i]
		slice.Spec.Devices, all = all[:len(slice.Spec.Devices)], all[len(slice.Spec.Devices):]
		out[i] = &slice
	}
	return out
}

// gpuUse is how far claims use a GPU, and the devices that it is offered as, one for each mode.
type gpuUse struct {
	usage.GPU
	devices []*resourceapi.Device
}

// gpusOf are the GPUs of a pool's devices, by index, as claims use them, and the largest share, in GiB of its GPU.
// Those in MIG mode are left out.
func gpusOf(
	all []resourceapi.Device, claims []*resourceapi.ResourceClaim, pool string,
) (gpus map[int]*gpuUse, largest int64) {
	gpus = map[int]*gpuUse{}
	for i := range all {
		d := &all[i]
		if !modeOf(d).OfNode() || indexOf(d) < 0 {
			continue
		}
		if gpus[indexOf(d)] == nil {
			gpus[indexOf(d)] = &gpuUse{}
		}
		g := gpus[indexOf(d)]
		units, cores, _ := devices.Reserved(d)
		g.Reserved.Units, g.Reserved.Cores = max(g.Reserved.Units, units), max(g.Reserved.Cores, cores)
		g.devices = append(g.devices, d)
	}
	for _, c := range claims {
		for index, own := range granted(c, pool) {
			g := gpus[index]
			if g == nil {
				continue
			}
			units := unitsOf(g.devices[0])
			if !own.Mode.Shared() {
				g.Mode, g.Units = own.Mode, units
				continue
			}
			g.Mode, g.Units, g.Cores, g.Shares = own.Mode, g.Units+own.Units, g.Cores+own.Cores, g.Shares+own.Shares
			largest = max(largest, own.Units, placement.AsMemory(own.Cores, units))
		}
	}
	return gpus, largest
}

// granted is what a claim has of the GPUs of a pool, by index.
func granted(c *resourceapi.ResourceClaim, pool string) map[int]usage.GPU {
	out := map[int]usage.GPU{}
	for _, r := range claim.Held(c, pool) {
		indices, m, err := devices.ParseDeviceName(r.Device)
		if err != nil || !m.OfNode() {
			continue
		}
		has, memory, cores := out[indices[0]], r.ConsumedCapacity[v1alpha1.CapMemory], r.ConsumedCapacity[v1alpha1.CapCores]
		has.Mode, has.Shares = m, has.Shares+1
		has.Units, has.Cores = has.Units+memory.Value()/devices.GiB, has.Cores+cores.Value()
		out[indices[0]] = has
	}
	return out
}

// takes says whether a device of the GPU takes a further claim, if only the smallest.
func (g *gpuUse) takes(d *resourceapi.Device) bool {
	_, closed := scheduling.Request{}.Untolerated(d)
	return !closed && g.Takes(modeOf(d), modeOf(d), unitsOf(d), roomOf(d).Shares)
}

// limit holds back of each device what placement.Limits does.
func limit(all []resourceapi.Device, gpus map[int]*gpuUse, largest int64) {
	byMode := map[mode.Mode][]*resourceapi.Device{}
	for i := range all {
		if d := &all[i]; scheduling.Spread(*d) {
			byMode[modeOf(d)] = append(byMode[modeOf(d)], d)
		}
	}
	for m, of := range byMode {
		shared := make([]placement.Shared, 0, len(of))
		for _, d := range of {
			g := gpus[indexOf(d)]
			one := placement.Shared{GPU: g.Placed(indexOf(d), unitsOf(d), !g.takes(d)), Room: roomOf(d)}
			if g.Mode == m {
				one.Granted = gpu.Amount{Units: g.Units, Shares: g.Shares}
			}
			shared = append(shared, one)
		}
		for i, limit := range placement.Limits(shared, largest, placement.Wanted{}) {
			room := shared[i].Room
			of[i].Capacity = maps.Clone(of[i].Capacity)
			set(of[i], v1alpha1.CapMemory, *resource.NewQuantity(min(room.Units, limit.Units)*devices.GiB, resource.BinarySI))
			set(of[i], v1alpha1.CapSlots, *resource.NewQuantity(min(room.Shares, limit.Shares), resource.DecimalSI))
		}
	}
}

func set(d *resourceapi.Device, name resourceapi.QualifiedName, value resource.Quantity) {
	if c, ok := d.Capacity[name]; ok {
		c.Value = value
		d.Capacity[name] = c
	}
}

// roomOf is what claims can have of a device together.
func roomOf(d *resourceapi.Device) gpu.Amount {
	all := devices.Unlimited(d)
	memory, slots := all[v1alpha1.CapMemory], all[v1alpha1.CapSlots]
	return gpu.Amount{Units: memory.Value.Value() / devices.GiB, Shares: slots.Value.Value()}
}

func indexOf(d *resourceapi.Device) int {
	return int(ptr.Deref(d.Attributes[v1alpha1.AttrIndex].IntValue, -1))
}

func unitsOf(d *resourceapi.Device) int64 {
	return gpu.GPU{MemoryMiB: ptr.Deref(d.Attributes[v1alpha1.AttrMemoryMiB].IntValue, 0)}.MemoryUnits()
}

func modeOf(d *resourceapi.Device) mode.Mode {
	return mode.Mode(ptr.Deref(d.Attributes[v1alpha1.AttrMode].StringValue, ""))
}
