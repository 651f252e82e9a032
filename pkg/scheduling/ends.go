// SPDX-License-Identifier: Apache-2.0

package scheduling

import (
	"context"
	"errors"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"

	"github.com/gpushare/dra-driver-gpushare/internal/stockallocator"
)

// EndsInTime reports whether the scheduler's allocator has searched a node for claims after nodeLooks at most, whatever
// others hold there: the search takes the longest where all is free but the last device. One that the allocator gives
// up on counts as endless.
func (e *Engine) EndsInTime(ctx context.Context, node *corev1.Node, published []*resourceapi.ResourceSlice,
	classes []*resourceapi.DeviceClass, claims []*resourceapi.ResourceClaim) (bool, error) {
	if !named(claims, classes) {
		return true, nil
	}
	allocator, err := e.Allocator(ctx, Snapshot{Slices: published, Classes: classes}, nil)
	if err != nil {
		return false, err
	}
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

// named reports whether all classes that claims name are there: else the scheduler gives up before it searches.
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

// withoutLast are claims like those that are given, which tolerate all taints, and of whose devices the last cannot be
// had.
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

// tolerateAll has a request find devices whatever their taints, which come and go.
func tolerateAll(r *resourceapi.DeviceRequest) {
	all := []resourceapi.DeviceToleration{{Operator: resourceapi.DeviceTolerationOpExists}}
	if r.Exactly != nil {
		r.Exactly.Tolerations = all
	}
	for i := range r.FirstAvailable {
		r.FirstAvailable[i].Tolerations = all
	}
}

// oneFewer is a request for all but the last of its devices: none, where no alternative asks for several. Who asks for
// all devices chooses none of them.
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
