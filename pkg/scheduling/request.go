// SPDX-License-Identifier: Apache-2.0

package scheduling

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

// Request is a request of a claim, or one alternative of it.
type Request struct {
	// Name is the request's, or request/alternative, as the API refers to it.
	Name        string
	Class       string
	Selectors   []string
	Count       int64
	Capacity    map[resourceapi.QualifiedName]resource.Quantity
	Tolerations []resourceapi.DeviceToleration
	// All is whether all devices that match are asked for, Admin whether for access beside
	// those that hold them.
	All, Admin bool
}

// Alternatives are those of a request, in their order; a request without any is
// one.
func Alternatives(r *resourceapi.DeviceRequest) []Request {
	if e := r.Exactly; e != nil {
		return []Request{{
			Name: r.Name, Class: e.DeviceClassName, Selectors: conditions(e.Selectors), Count: least(e.AllocationMode, e.Count),
			Capacity: amounts(e.Capacity), Tolerations: e.Tolerations,
			All: e.AllocationMode == resourceapi.DeviceAllocationModeAll, Admin: ptr.Deref(e.AdminAccess, false),
		}}
	}
	var out []Request
	for _, s := range r.FirstAvailable {
		out = append(out, Request{
			Name: resourceclaim.CreateSubRequestRef(r.Name, s.Name), Class: s.DeviceClassName,
			Selectors: conditions(s.Selectors),
			Count:     least(s.AllocationMode, s.Count), Capacity: amounts(s.Capacity), Tolerations: s.Tolerations,
			All: s.AllocationMode == resourceapi.DeviceAllocationModeAll,
		})
	}
	return out
}

// Served are those alternatives of a request that could ever be chosen: some are there to
// be counted by a ResourceQuota.
func Served(r *resourceapi.DeviceRequest) []Request {
	return slices.DeleteFunc(Alternatives(r), func(r Request) bool { return quota.IsClass(r.Class) })
}

// least is how many devices are asked for at least; "all" is some.
func least(m resourceapi.DeviceAllocationMode, count int64) int64 {
	if m == resourceapi.DeviceAllocationModeAll {
		return 1
	}
	return max(count, 1)
}

// conditions are the CEL expressions of selectors.
func conditions(selectors []resourceapi.DeviceSelector) []string {
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

// ofDriver says whether a class is for devices of the driver: by its name, as there may be no
// such class, which is nil then, or by what it selects.
func ofDriver(name string, class *resourceapi.DeviceClass) bool {
	if strings.HasSuffix(name, "."+v1alpha1.DriverName) {
		return true
	}
	return class != nil && slices.ContainsFunc(conditions(class.Spec.Selectors), func(e string) bool {
		return strings.Contains(e, `"`+v1alpha1.DriverName+`"`) || strings.Contains(e, `'`+v1alpha1.DriverName+`'`)
	})
}

// Most is the most of a capacity that one claim can be given of a device that
// nobody else uses; false where the device does not have the capacity.
func Most(d *resourceapi.Device, name resourceapi.QualifiedName) (resource.Quantity, bool) {
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

// Short is the first capacity, by name, of which a device has less than is asked
// for, even if nobody else uses it; empty if there is none. The scheduler rounds
// amounts up, never down.
func (r Request) Short(d *resourceapi.Device) resourceapi.QualifiedName {
	for _, name := range slices.Sorted(maps.Keys(r.Capacity)) {
		asked := r.Capacity[name]
		if has, ok := Most(d, name); !ok || asked.Cmp(has) > 0 {
			return name
		}
	}
	return ""
}

// Untolerated is the first taint that keeps the request off a device.
func (r Request) Untolerated(d *resourceapi.Device) (resourceapi.DeviceTaint, bool) {
	for _, taint := range d.Taints {
		if taint.Effect != resourceapi.DeviceTaintEffectNoSchedule && taint.Effect != resourceapi.DeviceTaintEffectNoExecute {
			continue
		}
		if !slices.ContainsFunc(r.Tolerations, func(t resourceapi.DeviceToleration) bool {
			return resourceclaim.ToleratesTaint(t, taint)
		}) {
			return taint, true
		}
	}
	return resourceapi.DeviceTaint{}, false
}
