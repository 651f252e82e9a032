// SPDX-License-Identifier: Apache-2.0

package scheduling

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/ptr"

	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/devices"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
	"github.com/gpushare/dra-driver-gpushare/pkg/mode"
)

// IsSet reports whether a device is several GPUs.
func IsSet(d *resourceapi.Device) bool {
	n := d.Attributes[v1alpha1.AttrGPUCount].IntValue
	return n != nil && *n > 1
}

// IsInstance reports whether a device is a MIG instance.
func IsInstance(d *resourceapi.Device) bool {
	return ptr.Deref(d.Attributes[v1alpha1.AttrMode].StringValue, "") == string(mode.MIG)
}

// IsPlacement reports whether a device is a place for a MIG instance that is made when a claim needs it.
func IsPlacement(d *resourceapi.Device) bool { return IsInstance(d) && len(d.ConsumesCounters) > 0 }

// GPUOf is how a device's GPU is called; that of a linked set is the set, and of a MIG instance the instance.
func GPUOf(d *resourceapi.Device) string {
	if index := d.Attributes[v1alpha1.AttrIndex].IntValue; index != nil && !IsSet(d) && !IsInstance(d) {
		return fmt.Sprintf("gpu-%d", *index)
	}
	return d.Name
}

// freeSlices is how many memory slices are free of the GPU of a MIG instance that would be made for a claim. short are
// the counters of its engines that have too little left, where its own slices are free.
func (o *offer) freeSlices(d *resourceapi.Device) (free int, short []string) {
	if !IsPlacement(d) {
		return 0, nil
	}
	of := d.ConsumesCounters[0]
	for name, left := range o.left[of.CounterSet] {
		if strings.HasPrefix(name, devices.MemorySlice) && left.Sign() > 0 {
			free++
		}
	}
	for _, name := range slices.Sorted(maps.Keys(of.Counters)) {
		if left := o.left[of.CounterSet][name]; left.Cmp(of.Counters[name].Value) >= 0 {
			continue
		}
		if strings.HasPrefix(name, devices.MemorySlice) {
			return free, nil
		}
		short = append(short, name)
	}
	return free, short
}

// inOrder are the names of capacities, memory first: it is what most look for.
func inOrder(capacity map[resourceapi.QualifiedName]resourceapi.DeviceCapacity) []resourceapi.QualifiedName {
	names := slices.Sorted(maps.Keys(capacity))
	if i := slices.Index(names, v1alpha1.CapMemory); i > 0 {
		copy(names[1:], names[:i])
		names[0] = v1alpha1.CapMemory
	}
	return names
}

// asWhole is a device as it would be if nobody had anything of its GPU. Where nobody has, its capacity is that of d and
// no copy: most GPUs of a large cluster are such.
func asWhole(d *resourceapi.Device) resourceapi.Device {
	whole := *d
	if holdsBack(*d) {
		whole.Capacity = devices.Unlimited(d)
	}
	restore(&whole)
	return whole
}

// restore gives a device the memory and the compute that its GPU has, in a capacity of its own. It offers less
// while pods without a claim hold some of it; that is like what claims hold, at which
// nobody looks here either.
func restore(d *resourceapi.Device) {
	memory, ok := d.Capacity[v1alpha1.CapMemory]
	total := d.Attributes[v1alpha1.AttrMemoryMiB].IntValue
	if !ok || total == nil || !ptr.Deref(d.AllowMultipleAllocations, false) {
		return
	}
	units := gpu.GPU{MemoryMiB: *total}.MemoryUnits()
	if memory.Value.CmpInt64(units*devices.GiB) >= 0 {
		return
	}
	d.Capacity = maps.Clone(d.Capacity)
	memory.Value = *resource.NewQuantity(units*devices.GiB, resource.BinarySI)
	d.Capacity[v1alpha1.CapMemory] = memory
	if cores, ok := d.Capacity[v1alpha1.CapCores]; ok {
		cores.Value = *resource.NewQuantity(gpu.WholeCores, resource.DecimalSI)
		d.Capacity[v1alpha1.CapCores] = cores
	}
	if slots, ok := d.Capacity[v1alpha1.CapSlots]; ok && slots.Value.IsZero() {
		slots.Value = *resource.NewQuantity(1, resource.DecimalSI)
		d.Capacity[v1alpha1.CapSlots] = slots
	}
}

// needed is what a request takes of a capacity: the scheduler fills in what is not asked for,
// and rounds up what is.
func needed(c resourceapi.DeviceCapacity, r Request, name resourceapi.QualifiedName) resource.Quantity {
	asked, is := r.Capacity[name]
	policy := ptr.Deref(c.RequestPolicy, resourceapi.CapacityRequestPolicy{})
	switch {
	case !is && policy.Default != nil:
		return *policy.Default
	case !is:
		return c.Value
	case policy.ValidRange != nil && policy.ValidRange.Min != nil:
		return roundedUp(asked, *policy.ValidRange)
	}
	for _, value := range policy.ValidValues {
		if asked.Cmp(value) <= 0 {
			return value
		}
	}
	return asked
}

func roundedUp(asked resource.Quantity, to resourceapi.CapacityRequestPolicyRange) resource.Quantity {
	if asked.Cmp(*to.Min) <= 0 {
		return *to.Min
	}
	if to.Step == nil || to.Step.Value() <= 0 {
		return asked
	}
	least, step := to.Min.Value(), to.Step.Value()
	steps := (asked.Value() - least + step - 1) / step
	return *resource.NewQuantity(least+steps*step, to.Step.Format)
}

// Spread reports whether something of a device may be held back to spread shares.
func Spread(d resourceapi.Device) bool {
	return d.Attributes[v1alpha1.AttrShareableGiB].IntValue != nil
}

// holdsBack reports whether something of it is held back.
func holdsBack(d resourceapi.Device) bool {
	if !Spread(d) {
		return false
	}
	for name, all := range devices.Unlimited(&d) {
		if capacity := d.Capacity[name]; capacity.Value.Cmp(all.Value) < 0 {
			return true
		}
	}
	return false
}
