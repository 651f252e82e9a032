// SPDX-License-Identifier: Apache-2.0

package devices

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/ptr"

	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
)

// Reserved returns what a published device shows to be taken of its GPU by pods that
// hold no claim, in GiB units and percent: what is left is its capacity, what the
// GPU has its attributes say. closed is whether nothing of the GPU is handed out
// because of them, or of another driver.
func Reserved(d *resourceapi.Device) (units, cores int64, closed bool) {
	closed = slices.ContainsFunc(d.Taints, func(t resourceapi.DeviceTaint) bool {
		return t.Key == v1alpha1.TaintHeld || t.Key == v1alpha1.TaintOtherDriver
	})
	if !ptr.Deref(d.AllowMultipleAllocations, false) {
		return 0, 0, closed
	}
	total := d.Attributes[v1alpha1.AttrMemoryMiB].IntValue
	if memory, ok := Unlimited(d)[v1alpha1.CapMemory]; ok && total != nil {
		units = max(0, gpu.GPU{MemoryMiB: *total}.MemoryUnits()-memory.Value.Value()/GiB)
	}
	if capacity, ok := d.Capacity[v1alpha1.CapCores]; ok {
		cores = max(0, gpu.WholeCores-capacity.Value.Value())
	}
	return units, cores, closed
}

// OfOtherDrivers names the GPUs of the published devices that other DRA drivers have, too, with
// these drivers; empty if there are none.
func OfOtherDrivers(published []resourceapi.Device) string {
	has := map[string]bool{}
	for _, d := range published {
		i := slices.IndexFunc(d.Taints, IsTaint(v1alpha1.TaintOtherDriver))
		if index := d.Attributes[v1alpha1.AttrIndex].IntValue; i >= 0 && index != nil {
			has[fmt.Sprintf("gpu-%d (%s)", *index, d.Taints[i].Value)] = true
		}
	}
	return strings.Join(slices.Sorted(maps.Keys(has)), ", ")
}

// Unlimited is the capacity of a published device as it would be if nothing of it were held
// back to spread shares.
func Unlimited(d *resourceapi.Device) map[resourceapi.QualifiedName]resourceapi.DeviceCapacity {
	units, shares := d.Attributes[v1alpha1.AttrShareableGiB].IntValue, d.Attributes[v1alpha1.AttrMaxShares].IntValue
	if units == nil || shares == nil {
		return d.Capacity
	}
	all := maps.Clone(d.Capacity)
	raise := func(name resourceapi.QualifiedName, value resource.Quantity) {
		if c, ok := all[name]; ok {
			c.Value = value
			all[name] = c
		}
	}
	raise(v1alpha1.CapMemory, *resource.NewQuantity(*units*GiB, resource.BinarySI))
	raise(v1alpha1.CapSlots, *resource.NewQuantity(*shares, resource.DecimalSI))
	return all
}
