// SPDX-License-Identifier: Apache-2.0

package offer

import (
	"context"
	"maps"
	"slices"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/utils/ptr"

	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/devices"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
	"github.com/gpushare/dra-driver-gpushare/pkg/placement/score"
	"github.com/gpushare/dra-driver-gpushare/pkg/scheduling"
)

// Suitable finds those devices of a shape that a request would be given if nobody had any: scheduling.Engine.Suitable.
type Suitable func(ctx context.Context, shape int, r scheduling.Request) []resourceapi.Device

// Asked are the requests of claims as the score counts them, of the devices that there are, by shape. It is false where
// one of them matches nothing, or asks for what is not ranked: all devices that match, or a view beside who has them.
func Asked(ctx context.Context, claims []*resourceapi.ResourceClaim, shapes [][]resourceapi.Device, suits Suitable) (
	[]score.Request, bool) {
	var out []score.Request
	for _, claim := range claims {
		for i := range claim.Spec.Devices.Requests {
			found, alternatives := false, scheduling.Served(&claim.Spec.Devices.Requests[i])
			if slices.ContainsFunc(alternatives, func(r scheduling.Request) bool { return r.All || r.Admin }) {
				return nil, false
			}
			for _, r := range alternatives {
				var request score.Request
				if request, found = askedBy(ctx, r, shapes, suits); found {
					out = append(out, request)
					break
				}
			}
			if !found {
				return nil, false
			}
		}
	}
	return out, len(out) > 0
}

// askedBy is a request as the score counts it.
func askedBy(ctx context.Context, r scheduling.Request, shapes [][]resourceapi.Device, suits Suitable) (score.Request,
	bool) {
	var out score.Request
	var each int64
	named := map[string]bool{}
	for i := range shapes {
		suiting := suits(ctx, i, r)
		for j := range suiting {
			d := &suiting[j]
			out.Mode |= ModeOf(d)
			named[ptr.Deref(d.Attributes[v1alpha1.AttrModel].StringValue, "")] = true
			if n := ptr.Deref(d.Attributes[v1alpha1.AttrGPUCount].IntValue, 1); each == 0 || n < each {
				each = n
			}
			if scheduling.IsInstance(d) {
				units := gpu.GPU{MemoryMiB: ptr.Deref(d.Attributes[v1alpha1.AttrMemoryMiB].IntValue, 0)}.MemoryUnits()
				if out.Memory == 0 || units < out.Memory {
					out.Memory = units
				}
			}
		}
	}
	if out.Mode == 0 {
		return score.Request{}, false
	}
	out.Count = int(r.Count * each)
	if memory, is := r.Capacity[v1alpha1.CapMemory]; is {
		out.Memory = (memory.Value() + devices.GiB - 1) / devices.GiB
	}
	if cores, is := r.Capacity[v1alpha1.CapCores]; is {
		out.Cores = cores.Value()
	}
	for _, shape := range shapes {
		for i := range shape {
			model := ptr.Deref(shape[i].Attributes[v1alpha1.AttrModel].StringValue, "")
			if ModeOf(&shape[i])&out.Mode != 0 && !named[model] {
				out.Models = slices.Sorted(maps.Keys(named))
				return out, true
			}
		}
	}
	return out, true
}
