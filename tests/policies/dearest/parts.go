// SPDX-License-Identifier: Apache-2.0

package main

import (
	"slices"
	"strings"

	resourceapi "k8s.io/api/resource/v1"
)

func (m *changer) changeConstraints(claim *resourceapi.DeviceClaim) {
	if !m.kinds.has("constraints") {
		return
	}
	if len(claim.Constraints) > 0 && m.oneIn(2) {
		at := m.random.IntN(len(claim.Constraints))
		claim.Constraints = slices.Delete(claim.Constraints, at, at+1)
		return
	}
	name := resourceapi.FullyQualifiedName(pick(m, "gpu.aliyun.com/uuid", "gpu.aliyun.com/model",
		"gpu.aliyun.com/index",
		"gpu.aliyun.com/mode", "gpu.aliyun.com/gpuCount", "gpu.aliyun.com/profile", "gpu.aliyun.com/parentUUID",
		"gpu.aliyun.com/memoryMiB", "resource.kubernetes.io/numaNode", "resource.kubernetes.io/pcieRoot"))
	of := resourceapi.DeviceConstraint{MatchAttribute: &name}
	if m.oneIn(4) {
		of = resourceapi.DeviceConstraint{DistinctAttribute: &name}
	}
	if m.oneIn(2) {
		for _, r := range claim.Requests {
			if m.oneIn(2) {
				of.Requests = append(of.Requests, r.Name)
			}
		}
	}
	for range pick(m, 1, 1, 1, 4, 16) {
		claim.Constraints = append(claim.Constraints, of)
	}
}

func (m *changer) changeAlternatives(r *resourceapi.DeviceRequest) {
	if r.Exactly != nil {
		first := *alternatives(r)[0]
		r.Exactly, r.FirstAvailable = nil, nil
		for range 1 + m.random.IntN(8) {
			r.FirstAvailable = append(r.FirstAvailable, *first.DeepCopy())
		}
		return
	}
	at := m.random.IntN(len(r.FirstAvailable))
	switch {
	case m.oneIn(3) && len(r.FirstAvailable) > 1:
		r.FirstAvailable = slices.Delete(r.FirstAvailable, at, at+1)
	case m.oneIn(6):
		s := r.FirstAvailable[at]
		r.FirstAvailable = nil
		r.Exactly = &resourceapi.ExactDeviceRequest{DeviceClassName: s.DeviceClassName, Selectors: s.Selectors,
			AllocationMode: s.AllocationMode, Count: s.Count, Tolerations: s.Tolerations, Capacity: s.Capacity}
	default:
		for range m.small(4) {
			r.FirstAvailable = append(r.FirstAvailable, *r.FirstAvailable[at].DeepCopy())
		}
	}
}

// part are the fields that requests and subrequests have in common.
type part struct {
	class       *string
	selectors   *[]resourceapi.DeviceSelector
	mode        *resourceapi.DeviceAllocationMode
	count       *int64
	tolerations *[]resourceapi.DeviceToleration
	capacity    **resourceapi.CapacityRequirements
}

func partsOf(r *resourceapi.DeviceRequest) []part {
	if e := r.Exactly; e != nil {
		return []part{{&e.DeviceClassName, &e.Selectors, &e.AllocationMode, &e.Count, &e.Tolerations, &e.Capacity}}
	}
	var out []part
	for i := range r.FirstAvailable {
		s := &r.FirstAvailable[i]
		out = append(out, part{&s.DeviceClassName, &s.Selectors, &s.AllocationMode, &s.Count, &s.Tolerations,
			&s.Capacity})
	}
	return out
}

func (m *changer) changePart(p part) {
	switch m.random.IntN(8) {
	case 0:
		*p.class = m.class()
	case 1:
		if m.kinds.has("counts") {
			*p.mode, *p.count = resourceapi.DeviceAllocationModeExactCount, int64(pick(m, 1, 1, 2, 3, 4, 5, 8, 9, 16,
				17, 31, 32))
		}
	case 2:
		if m.kinds.has("all") && m.oneIn(2) {
			*p.mode, *p.count = resourceapi.DeviceAllocationModeAll, 0
		}
	case 3:
		if m.kinds.has("amounts") {
			*p.capacity = nil
			if !m.oneIn(4) {
				*p.capacity = m.amounts()
			}
		}
	case 4:
		*p.selectors = nil
	case 5:
		if m.kinds.has("tolerations") {
			*p.tolerations = nil
			for range pick(m, 0, 1, 16) {
				*p.tolerations = append(*p.tolerations,
					resourceapi.DeviceToleration{Operator: resourceapi.DeviceTolerationOpExists})
			}
		}
	default:
		for range pick(m, 1, 1, 1, 2, 4, 15, 31) {
			if text := selector(m.random, m.words, m.kinds); strings.TrimSpace(text) != "" {
				*p.selectors = append(*p.selectors, expression(text))
			}
		}
	}
}
