// SPDX-License-Identifier: Apache-2.0

package published

import (
	"cmp"
	"maps"
	"slices"
	"strconv"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/ptr"

	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/claim"
	"github.com/gpushare/dra-driver-gpushare/pkg/devices"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
	"github.com/gpushare/dra-driver-gpushare/pkg/held"
	"github.com/gpushare/dra-driver-gpushare/pkg/mode"
	"github.com/gpushare/dra-driver-gpushare/pkg/placement"
	"github.com/gpushare/dra-driver-gpushare/pkg/scheduling"
	"github.com/gpushare/dra-driver-gpushare/pkg/usage"
)

// After are the slices as the driver publishes them when a node's GPUs are used as the claims say: in the order
// of its placement, with what that holds back (usage.Occupancy).
func After(published []*resourceapi.ResourceSlice, claims []*resourceapi.ResourceClaim,
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
	used, granted := occupancyOf(all, claims, pool)
	next := used.Packed()
	if slices.ContainsFunc(all, scheduling.Spread) {
		next = used.Spread(usage.Largest(granted), placement.Wanted{})
		limit(all, next.Limits)
	}
	rank := func(d resourceapi.Device) int {
		switch modeOf(&d) {
		case mode.MIG:
			return len(next.Order) // in an order of their own
		case mode.Monitor:
			return len(next.Order) + 1
		}
		return slices.Index(next.Order, indexOf(&d))
	}
	slices.SortStableFunc(all, func(a, b resourceapi.Device) int { return cmp.Compare(rank(a), rank(b)) })
	for _, i := range own {
		slice := *out[i]
		slice.Spec.Devices, all = all[:len(slice.Spec.Devices)], all[len(slice.Spec.Devices):]
		out[i] = &slice
	}
	return out
}

// occupancyOf is how far claims use the GPUs of a pool's devices, and what they were granted of them. Those in MIG mode
// are left out. Indices stand for UUIDs.
func occupancyOf(all []resourceapi.Device, claims []*resourceapi.ResourceClaim,
	pool string) (o usage.Occupancy, granted []usage.Claim) {
	slots, open := map[mode.Mode]int64{}, map[mode.Mode]map[string]bool{}
	for i := range all {
		slots[modeOf(&all[i])] = max(slots[modeOf(&all[i])], roomOf(&all[i]).Shares)
	}
	gpus, reserved := map[string]claim.GPU{}, map[string]held.GPU{}
	for i := range all {
		d := &all[i]
		m, index := modeOf(d), indexOf(d)
		if !m.OfNode() || index < 0 {
			continue
		}
		of := claim.GPU{Index: index, UUID: keyOf(index),
			MemoryMiB: ptr.Deref(d.Attributes[v1alpha1.AttrMemoryMiB].IntValue, 0)}
		if _, known := gpus[of.UUID]; !known {
			gpus[of.UUID] = of
			o.GPUs = append(o.GPUs, gpu.GPU{Index: index, UUID: of.UUID, MemoryMiB: of.MemoryMiB})
		}
		if open[m] == nil {
			open[m] = map[string]bool{}
			o.Served = append(o.Served, usage.Serving{Mode: m, Slots: slots[m],
				Closed: func(uuid string) bool { return !open[m][uuid] }})
		}
		_, tainted := scheduling.Request{}.Untolerated(d)
		open[m][of.UUID] = !tainted
		units, cores, _ := devices.Reserved(d)
		r := reserved[of.UUID]
		r.Units, r.Cores, r.Shares = max(r.Units, units), max(r.Cores, cores), max(r.Shares, slots[m]-roomOf(d).Shares)
		reserved[of.UUID] = r
	}
	if o.Mode = mode.Dynamic; len(o.Served) == 1 {
		o.Mode = o.Served[0].Mode
	}
	for _, c := range claims {
		var of usage.Claim
		for _, r := range claim.Held(c, pool) {
			indices, m, err := devices.ParseDeviceName(r.Device)
			if err != nil || !m.OfNode() || gpus[keyOf(indices[0])].UUID == "" {
				continue
			}
			memory, cores := r.ConsumedCapacity[v1alpha1.CapMemory], r.ConsumedCapacity[v1alpha1.CapCores]
			of.Grants = append(of.Grants, claim.Grant{Mode: m, GPU: gpus[keyOf(indices[0])],
				Units: memory.Value() / devices.GiB, CoresPercent: cores.Value()})
		}
		if len(of.Grants) > 0 {
			granted = append(granted, of)
		}
	}
	o.Used = usage.Of(granted, func(uuid string) held.GPU { return reserved[uuid] })
	o.Counted = o.Used
	return o, granted
}

// limit holds back of each device what the limits say.
func limit(all []resourceapi.Device, limits map[mode.Mode]map[string]gpu.Amount) {
	for i := range all {
		d := &all[i]
		most, limited := limits[modeOf(d)][keyOf(indexOf(d))]
		if !limited || !scheduling.Spread(*d) {
			continue
		}
		room := roomOf(d)
		d.Capacity = maps.Clone(d.Capacity)
		set(d, v1alpha1.CapMemory, *resource.NewQuantity(min(room.Units, most.Units)*devices.GiB, resource.BinarySI))
		set(d, v1alpha1.CapSlots, *resource.NewQuantity(min(room.Shares, most.Shares), resource.DecimalSI))
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

func keyOf(index int) string { return strconv.Itoa(index) }

func modeOf(d *resourceapi.Device) mode.Mode {
	return mode.Mode(ptr.Deref(d.Attributes[v1alpha1.AttrMode].StringValue, ""))
}
