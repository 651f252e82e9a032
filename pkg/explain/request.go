// SPDX-License-Identifier: Apache-2.0

package explain

import (
	"maps"
	"slices"
	"strings"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/dynamic-resource-allocation/resourceclaim"
	"k8s.io/utils/ptr"

	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/quota"
)

// request is a request of a claim, or one alternative of it.
type request struct {
	// name is the request's, or request/alternative, as the API refers to it.
	name        string
	class       string
	selectors   []string
	count       int64
	capacity    map[resourceapi.QualifiedName]resource.Quantity
	tolerations []resourceapi.DeviceToleration
	// all is whether all devices that match are asked for, admin whether for access beside
	// those that hold them.
	all, admin bool
}

// alternatives are those of a request, in their order; a request without any is
// one.
func alternatives(r *resourceapi.DeviceRequest) []request {
	if e := r.Exactly; e != nil {
		return []request{{
			name: r.Name, class: e.DeviceClassName, selectors: expressions(e.Selectors), count: least(e.AllocationMode, e.Count),
			capacity: amounts(e.Capacity), tolerations: e.Tolerations,
			all: e.AllocationMode == resourceapi.DeviceAllocationModeAll, admin: ptr.Deref(e.AdminAccess, false),
		}}
	}
	var out []request
	for _, s := range r.FirstAvailable {
		out = append(out, request{
			name: resourceclaim.CreateSubRequestRef(r.Name, s.Name), class: s.DeviceClassName,
			selectors: expressions(s.Selectors),
			count:     least(s.AllocationMode, s.Count), capacity: amounts(s.Capacity), tolerations: s.Tolerations,
			all: s.AllocationMode == resourceapi.DeviceAllocationModeAll,
		})
	}
	return out
}

// served are those alternatives of a request that could ever be chosen: some are there to
// be counted by a ResourceQuota.
func served(r *resourceapi.DeviceRequest) []request {
	return slices.DeleteFunc(alternatives(r), func(r request) bool { return quota.IsClass(r.class) })
}

// least is how many devices are asked for at least; "all" is some.
func least(m resourceapi.DeviceAllocationMode, count int64) int64 {
	if m == resourceapi.DeviceAllocationModeAll {
		return 1
	}
	return max(count, 1)
}

func expressions(selectors []resourceapi.DeviceSelector) []string {
	var out []string
	for _, s := range selectors {
		if s.CEL != nil {
			out = append(out, s.CEL.Expression)
		}
	}
	return out
}

func amounts(c *resourceapi.CapacityRequirements) map[resourceapi.QualifiedName]resource.Quantity {
	if c == nil {
		return nil
	}
	return c.Requests
}

// ours says whether a request is for devices of the driver: by the name of its
// class, as there may be no such class, or by what the class selects.
func (c *Cluster) ours(r request) bool { return ofDriver(r.class, c.classes[r.class]) }

// ofDriver says the same of a class; it is nil where there is none of the name.
func ofDriver(name string, class *resourceapi.DeviceClass) bool {
	if strings.HasSuffix(name, "."+v1alpha1.DriverName) {
		return true
	}
	return class != nil && slices.ContainsFunc(expressions(class.Spec.Selectors), func(e string) bool {
		return strings.Contains(e, `"`+v1alpha1.DriverName+`"`) || strings.Contains(e, `'`+v1alpha1.DriverName+`'`)
	})
}

// most is the most of a capacity that one claim can be given of a device that
// nobody else uses; false where the device does not have the capacity.
func most(d *resourceapi.Device, name resourceapi.QualifiedName) (resource.Quantity, bool) {
	capacity, ok := d.Capacity[name]
	if !ok {
		return resource.Quantity{}, false
	}
	if p := capacity.RequestPolicy; p != nil && p.ValidRange != nil && p.ValidRange.Max != nil &&
		p.ValidRange.Max.Cmp(capacity.Value) < 0 {
		return *p.ValidRange.Max, true
	}
	return capacity.Value, true
}

// short is the first capacity, by name, of which a device has less than is asked
// for, even if nobody else uses it; empty if there is none. The scheduler rounds
// amounts up, never down.
func (r request) short(d *resourceapi.Device) resourceapi.QualifiedName {
	for _, name := range slices.Sorted(maps.Keys(r.capacity)) {
		asked := r.capacity[name]
		if has, ok := most(d, name); !ok || asked.Cmp(has) > 0 {
			return name
		}
	}
	return ""
}

// closed returns the first taint that keeps the request off a device.
func (r request) closed(d *resourceapi.Device) (resourceapi.DeviceTaint, bool) {
	for _, taint := range d.Taints {
		if taint.Effect != resourceapi.DeviceTaintEffectNoSchedule && taint.Effect != resourceapi.DeviceTaintEffectNoExecute {
			continue
		}
		if !slices.ContainsFunc(r.tolerations, func(t resourceapi.DeviceToleration) bool {
			return resourceclaim.ToleratesTaint(t, taint)
		}) {
			return taint, true
		}
	}
	return resourceapi.DeviceTaint{}, false
}
