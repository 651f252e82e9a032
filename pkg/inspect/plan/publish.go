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
	"github.com/gpushare/dra-driver-gpushare/pkg/devices"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
	"github.com/gpushare/dra-driver-gpushare/pkg/mode"
	"github.com/gpushare/dra-driver-gpushare/pkg/placement"
	"github.com/gpushare/dra-driver-gpushare/pkg/scheduling"
)

// coresStep is the least compute that a share has, in percent, where it has any.
const coresStep = 5

// publishedAfter are the slices as the driver publishes them when a node's GPUs are used as
// the claims say: in the order of its placement, with what that holds back. It decides by the
// same functions (pkg/placement).
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
		all = append(all, out[i].DeepCopy().Spec.Devices...)
	}
	if !slices.ContainsFunc(all, func(d resourceapi.Device) bool { return ptr.Deref(d.AllowMultipleAllocations, false) }) {
		return out // whole GPUs stay in the order of their indices
	}
	use := survey(all, claims, pool)
	gpus := slices.Collect(maps.Values(use.gpus))
	order := placement.Packed(gpus)
	if slices.ContainsFunc(all, scheduling.Spread) {
		order = placement.Spread(gpus)
		use.limit(all)
	}
	rank := func(d resourceapi.Device) int {
		if modeOf(&d) == mode.MIG {
			return len(order) // MIG instances come last, in an order of their own
		}
		return slices.Index(order, int(ptr.Deref(d.Attributes[v1alpha1.AttrIndex].IntValue, -1)))
	}
	slices.SortStableFunc(all, func(a, b resourceapi.Device) int { return cmp.Compare(rank(a), rank(b)) })
	for _, i := range own {
		slice := out[i].DeepCopy()
		slice.Spec.Devices, all = all[:len(slice.Spec.Devices)], all[len(slice.Spec.Devices):]
		out[i] = slice
	}
	return out
}

// granted is what claims have of a device.
type granted struct {
	units, cores, shares int64
	// whole is whether one has all of it.
	whole bool
}

func (g granted) any() bool { return g.whole || g.shares > 0 }

// used is how far a node's GPUs are used.
type used struct {
	byDevice map[string]granted
	gpus     map[int64]placement.GPU
	// largest is the largest share, in GiB of its GPU.
	largest int64
}

// survey finds out how far the GPUs of some devices are used.
func survey(all []resourceapi.Device, claims []*resourceapi.ResourceClaim, pool string) used {
	u := used{byDevice: map[string]granted{}, gpus: map[int64]placement.GPU{}}
	memory := map[string]int64{}
	for i := range all {
		memory[all[i].Name] = unitsOf(&all[i])
	}
	for _, claim := range claims {
		if claim.Status.Allocation == nil {
			continue
		}
		ofClaim := map[string]granted{}
		for _, r := range claim.Status.Allocation.Devices.Results {
			if r.Driver != v1alpha1.DriverName || r.Pool != pool || ptr.Deref(r.AdminAccess, false) {
				continue
			}
			has, g := u.byDevice[r.Device], ofClaim[r.Device]
			if r.ShareID == nil {
				has.whole = true
				u.byDevice[r.Device] = has
				continue
			}
			gib, cores := r.ConsumedCapacity[v1alpha1.CapMemory], r.ConsumedCapacity[v1alpha1.CapCores]
			has.units, has.cores, has.shares = has.units+gib.Value()/devices.GiB, has.cores+cores.Value(), has.shares+1
			g.units, g.cores = g.units+gib.Value()/devices.GiB, g.cores+cores.Value()
			u.byDevice[r.Device], ofClaim[r.Device] = has, g
		}
		for device, g := range ofClaim {
			u.largest = max(u.largest, g.units, asMemory(g.cores, memory[device]))
		}
	}
	byGPU := map[int64][]*resourceapi.Device{}
	for i := range all {
		if index := all[i].Attributes[v1alpha1.AttrIndex].IntValue; index != nil && modeOf(&all[i]) != mode.MIG {
			byGPU[*index] = append(byGPU[*index], &all[i])
		}
	}
	for index, of := range byGPU {
		u.gpus[index] = u.gpu(index, of)
	}
	return u
}

// gpu is how far one is used that is offered as some devices, of which one is in use at most.
func (u used) gpu(index int64, of []*resourceapi.Device) placement.GPU {
	g := placement.GPU{Index: int(index), Memory: unitsOf(of[0]), Full: true}
	for _, d := range of {
		has := u.byDevice[d.Name]
		units, cores, _ := devices.Reserved(d)
		g.Used = max(g.Used, has.units+units, asMemory(has.cores+cores, g.Memory))
		if has.whole {
			g.Used = g.Memory
		}
		inUse := slices.ContainsFunc(of, func(other *resourceapi.Device) bool {
			return other.Name != d.Name && u.byDevice[other.Name].any()
		})
		g.Full = g.Full && (inUse || !u.takes(d))
	}
	return g
}

// takes says whether a device takes a further claim, if only the smallest.
func (u used) takes(d *resourceapi.Device) bool {
	if slices.ContainsFunc(d.Taints, func(t resourceapi.DeviceTaint) bool {
		return t.Effect == resourceapi.DeviceTaintEffectNoSchedule || t.Effect == resourceapi.DeviceTaintEffectNoExecute
	}) {
		return false
	}
	has := u.byDevice[d.Name]
	if !ptr.Deref(d.AllowMultipleAllocations, false) {
		return !has.any()
	}
	room := roomOf(d)
	cores := d.Capacity[v1alpha1.CapCores]
	return has.units < room.Units && has.shares < room.Shares &&
		(modeOf(d) != mode.CoreMem || has.cores+coresStep <= cores.Value.Value())
}

// limit holds back of each device what placement.Limits does.
func (u used) limit(all []resourceapi.Device) {
	byMode := map[mode.Mode][]*resourceapi.Device{}
	for i := range all {
		if d := &all[i]; scheduling.Spread(*d) {
			byMode[modeOf(d)] = append(byMode[modeOf(d)], d)
		}
	}
	for _, of := range byMode {
		shared := make([]placement.Shared, 0, len(of))
		for _, d := range of {
			has := u.byDevice[d.Name]
			g := u.gpus[*d.Attributes[v1alpha1.AttrIndex].IntValue]
			g.Full = g.Full || !u.takes(d)
			shared = append(shared, placement.Shared{GPU: g, Room: roomOf(d),
				Granted: placement.Amount{Units: has.units, Shares: has.shares}})
		}
		for i, limit := range placement.Limits(shared, u.largest, placement.Wanted{}) {
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
func roomOf(d *resourceapi.Device) placement.Amount {
	all := devices.Unlimited(d)
	memory, slots := all[v1alpha1.CapMemory], all[v1alpha1.CapSlots]
	return placement.Amount{Units: memory.Value.Value() / devices.GiB, Shares: slots.Value.Value()}
}

func unitsOf(d *resourceapi.Device) int64 {
	return gpu.GPU{MemoryMiB: ptr.Deref(d.Attributes[v1alpha1.AttrMemoryMiB].IntValue, 0)}.MemoryUnits()
}

func modeOf(d *resourceapi.Device) mode.Mode {
	return mode.Mode(ptr.Deref(d.Attributes[v1alpha1.AttrMode].StringValue, ""))
}

// asMemory is the same part of a GPU's memory, in GiB, as percent of its compute: the driver
// takes a GPU for as full as it is of the one of which it has less left.
func asMemory(percent, units int64) int64 { return (percent*units + 99) / 100 }
