// SPDX-License-Identifier: Apache-2.0

package scheduling

import (
	"context"
	"errors"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/utils/ptr"

	"github.com/gpushare/dra-driver-gpushare/internal/stockallocator"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
)

// EndsInTime reports whether the scheduler's allocator ends its search of a node for claims within nodeLooks, whatever
// others hold there. It has the allocator search the longest case: all devices are free, and the last one that the
// claims ask for cannot be had. It returns false also for claims that the allocator gives up on.
func (e *Engine) EndsInTime(ctx context.Context, node *corev1.Node, published []*resourceapi.ResourceSlice,
	classes []*resourceapi.DeviceClass, claims []*resourceapi.ResourceClaim) (bool, error) {
	if !named(claims, classes) {
		return true, nil
	}
	claims = e.othersLast(ctx, published, classes, claims)
	allocator, err := e.Allocator(ctx, Snapshot{Slices: e.tooFew(ctx, published, classes, claims), Classes: classes}, nil)
	if err != nil {
		return false, err
	}
	allocator.looks = longestLooks(published)
	selectors, err := allocator.selectorLooks(node.Name, claims) // also those of the last
	if err != nil {
		return false, nil
	}
	_, _, err = allocator.Fit(ctx, node, withoutLast(claims), &Effort{nodeLooks - selectors})
	if err != nil && ctx.Err() != nil {
		return false, fmt.Errorf("search node %s for the longest: %w", node.Name, errors.Join(context.Cause(ctx), err))
	}
	return err == nil, nil
}

// counterLooks is how many looks the allocator takes at most to refuse a device that consumes counters: it adds up what
// the GPU's other devices consume.
const counterLooks = 8

// longestLooks returns the stepLooks of steps at which no device can be had. Devices that tooFew leaves out count, too.
func longestLooks(published []*resourceapi.ResourceSlice) map[string]int64 {
	looks := stepLooks(published)
	for _, slice := range published {
		for i := range slice.Spec.Devices {
			if len(slice.Spec.Devices[i].ConsumesCounters) > 0 {
				looks[ptr.Deref(slice.Spec.NodeName, "")] += counterLooks
			}
		}
	}
	return looks
}

// tooFew returns what a node publishes, with only n - 1 of the suitable devices if the claims ask for n devices that
// are alike. The last of these cannot be had only while at most n - 1 of the GPUs have room, and the search never takes
// the other GPUs.
func (e *Engine) tooFew(ctx context.Context, published []*resourceapi.ResourceSlice, classes []*resourceapi.DeviceClass,
	claims []*resourceapi.ResourceClaim) []*resourceapi.ResourceSlice {
	wanted, n := alike(claims)
	if n == 0 {
		return published
	}
	out, seen := slices.Clone(published), map[int64]bool{}
	for i, slice := range out {
		suiting, rest := map[string]bool{}, *slice
		for _, d := range e.Suitable(ctx, classes, slice.Spec.Devices, wanted) {
			suiting[d.Name] = true
		}
		rest.Spec.Devices = nil
		for _, d := range slice.Spec.Devices {
			if suiting[d.Name] {
				index := d.Attributes[v1alpha1.AttrIndex].IntValue
				if index == nil || seen[*index] || IsInstance(&d) {
					return published // a GPU that has several may have room for one of them alone
				}
				seen[*index] = true
			}
			if !suiting[d.Name] || int64(len(seen)) < n {
				rest.Spec.Devices = append(rest.Spec.Devices, d)
			}
		}
		out[i] = &rest
	}
	return out
}

// othersLast returns the claims with one request, the last, in place of all those whose classes select nothing that a
// node publishes. These may be for devices of other drivers, and the controller does not know when they run out.
func (e *Engine) othersLast(ctx context.Context, published []*resourceapi.ResourceSlice,
	classes []*resourceapi.DeviceClass, claims []*resourceapi.ResourceClaim) []*resourceapi.ResourceClaim {
	var last string
	isOthers := func(r resourceapi.DeviceRequest) bool {
		for _, way := range Alternatives(&r) {
			one := Request{Class: way.Class, Count: 1, Tolerations: everyTaint()}
			if slices.ContainsFunc(published, func(s *resourceapi.ResourceSlice) bool {
				return len(e.Suitable(ctx, classes, s.Spec.Devices, one)) > 0
			}) {
				return false
			}
			last = way.Class
		}
		return true
	}
	out := make([]*resourceapi.ResourceClaim, 0, len(claims))
	others := false
	for _, claim := range claims {
		claim = claim.DeepCopy()
		of := &claim.Spec.Devices
		all := len(of.Requests)
		of.Requests = slices.DeleteFunc(of.Requests, isOthers)
		others = others || len(of.Requests) < all
		out = append(out, claim)
	}
	if others {
		of := &out[len(out)-1].Spec.Devices
		of.Requests = append(of.Requests, resourceapi.DeviceRequest{Name: "others", Exactly: &resourceapi.ExactDeviceRequest{
			DeviceClassName: last, AllocationMode: resourceapi.DeviceAllocationModeExactCount, Count: 1}})
	}
	return out
}

// alike returns what each request of the claims asks for, with tolerations of all taints, and the number of devices.
// The number is 0 if the requests differ.
func alike(claims []*resourceapi.ResourceClaim) (first Request, n int64) {
	for _, claim := range claims {
		for i := range claim.Spec.Devices.Requests {
			of := Alternatives(&claim.Spec.Devices.Requests[i])
			if n == 0 && len(of) > 0 {
				first = of[0]
			}
			if len(of) != 1 || of[0].All || of[0].Admin || len(claim.Spec.Devices.Constraints) > 0 ||
				of[0].Class != first.Class || !slices.Equal(of[0].Selectors, first.Selectors) ||
				!equality.Semantic.DeepEqual(of[0].Capacity, first.Capacity) {
				return Request{}, 0
			}
			n += of[0].Count
		}
	}
	first.Tolerations = everyTaint()
	return first, n
}

// named reports whether all classes that the claims name exist. Otherwise the scheduler gives up before it searches.
func named(claims []*resourceapi.ResourceClaim, classes stockallocator.Classes) bool {
	for _, claim := range claims {
		for i := range claim.Spec.Devices.Requests {
			for _, r := range Alternatives(&claim.Spec.Devices.Requests[i]) {
				if _, err := classes.Get(r.Class); err != nil {
					return false
				}
			}
		}
	}
	return true
}

// withoutLast returns copies of the claims that tolerate all taints, and whose last device cannot be had.
func withoutLast(claims []*resourceapi.ResourceClaim) []*resourceapi.ResourceClaim {
	out := make([]*resourceapi.ResourceClaim, 0, len(claims))
	for _, claim := range claims {
		claim = claim.DeepCopy()
		for i := range claim.Spec.Devices.Requests {
			tolerateAll(&claim.Spec.Devices.Requests[i])
		}
		out = append(out, claim)
	}
	out = slices.DeleteFunc(out, func(c *resourceapi.ResourceClaim) bool { return len(c.Spec.Devices.Requests) == 0 })
	if len(out) == 0 {
		return nil
	}
	of := &out[len(out)-1].Spec.Devices
	last := of.Requests[len(of.Requests)-1]
	missing := resourceapi.DeviceRequest{Name: "missing", Exactly: &resourceapi.ExactDeviceRequest{
		DeviceClassName: Alternatives(&last)[0].Class, AllocationMode: resourceapi.DeviceAllocationModeExactCount, Count: 1,
		Selectors: []resourceapi.DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{Expression: "false"}}}}}
	of.Requests = append(of.Requests[:len(of.Requests)-1], oneFewer(last)...)
	of.Requests = append(of.Requests, missing)
	return out
}

// tolerateAll makes a request tolerate all taints, since these come and go.
func tolerateAll(r *resourceapi.DeviceRequest) {
	if r.Exactly != nil {
		r.Exactly.Tolerations = everyTaint()
	}
	for i := range r.FirstAvailable {
		r.FirstAvailable[i].Tolerations = everyTaint()
	}
}

func everyTaint() []resourceapi.DeviceToleration {
	return []resourceapi.DeviceToleration{{Operator: resourceapi.DeviceTolerationOpExists}}
}

// oneFewer returns a request for all but the last of its devices, and none if no alternative asks for several. An
// alternative for all devices is left out: the allocator has nothing to choose for it.
func oneFewer(r resourceapi.DeviceRequest) []resourceapi.DeviceRequest {
	fewer := func(mode resourceapi.DeviceAllocationMode, count *int64) bool {
		*count--
		return mode != resourceapi.DeviceAllocationModeAll && *count > 0
	}
	if e := r.Exactly; e != nil {
		if !fewer(e.AllocationMode, &e.Count) {
			return nil
		}
		return []resourceapi.DeviceRequest{r}
	}
	var some []resourceapi.DeviceSubRequest
	for _, s := range r.FirstAvailable {
		if fewer(s.AllocationMode, &s.Count) {
			some = append(some, s)
		}
	}
	if len(some) == 0 {
		return nil
	}
	r.FirstAvailable = some
	return []resourceapi.DeviceRequest{r}
}
