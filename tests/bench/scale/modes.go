// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"slices"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/gpushare/dra-driver-gpushare/internal/allocatortest"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/mode"
)

// contestant is a mode and what is asked of its nodes.
type contestant struct {
	mode mode.Mode
	// machine is the name of the machine file of all nodes.
	machine string
	// requests are those of each claim. They fit on every node that is free.
	requests []resourceapi.DeviceRequest
	// target is how long the allocator may take per node; 0 where the design
	// names no target.
	target time.Duration
	// scheduled says that pods go through the real scheduler too.
	scheduled bool
}

// contestants are the columns of the table. The capped modes are to the
// scheduler what share is, but for what a claim asks for.
func contestants() []contestant {
	return []contestant{
		{mode: mode.Exclusive, machine: "dgx1", requests: one("exclusive", nil), target: 50 * time.Microsecond,
			scheduled: true},
		{mode: mode.Share, machine: "dgx1", requests: one("share", amounts{v1alpha1.CapMemory: "1Gi"}),
			target: 50 * time.Microsecond, scheduled: true},
		{mode: mode.CGPU, machine: "dgx1", requests: one("cgpu", amounts{v1alpha1.CapMemory: "1Gi"})},
		{mode: mode.CoreMem, machine: "dgx1", requests: one("core-mem", amounts{v1alpha1.CapMemory: "1Gi",
			v1alpha1.CapCores: "5"})},
		{mode: mode.MPS, machine: "dgx1", requests: one("mps", amounts{v1alpha1.CapMemory: "1Gi"})},
		{mode: mode.Topology, machine: "dgx1", requests: linked(4), target: 1500 * time.Microsecond, scheduled: true},
		{mode: mode.Dynamic, machine: "dgx1", requests: one("share", amounts{v1alpha1.CapMemory: "1Gi"}), scheduled: true},
	}
}

// withBestNode is the column of the mode with the option best-node.
func (c contestant) withBestNode() string { return string(c.mode) + ", best-node" }

type amounts map[resourceapi.QualifiedName]string

// one is a request for one device of the class <class>.gpu.aliyun.com.
func one(class string, a amounts) []resourceapi.DeviceRequest {
	exactly := &resourceapi.ExactDeviceRequest{
		DeviceClassName: class + "." + v1alpha1.DriverName,
		AllocationMode:  resourceapi.DeviceAllocationModeExactCount, Count: 1,
	}
	if len(a) > 0 {
		exactly.Capacity = &resourceapi.CapacityRequirements{Requests: map[resourceapi.QualifiedName]resource.Quantity{}}
		for capacity, amount := range a {
			exactly.Capacity.Requests[capacity] = resource.MustParse(amount)
		}
	}
	return []resourceapi.DeviceRequest{{Name: "gpu", Exactly: exactly}}
}

// linked is a request for a linked set of that many GPUs or, where there is
// none, for any.
func linked(count int64) []resourceapi.DeviceRequest {
	sub := func(name, class string, devices int64) resourceapi.DeviceSubRequest {
		return resourceapi.DeviceSubRequest{
			Name: name, DeviceClassName: class + ".topology." + v1alpha1.DriverName,
			AllocationMode: resourceapi.DeviceAllocationModeExactCount, Count: devices,
		}
	}
	return []resourceapi.DeviceRequest{{Name: "cards", FirstAvailable: []resourceapi.DeviceSubRequest{
		sub("linked", fmt.Sprintf("linked-%d", count), 1), sub("any", "single", count),
	}}}
}

// unknownModel selects GPUs of a model that no node has.
const unknownModel = `device.attributes["` + v1alpha1.DriverName + `"].model == "none"`

// unsatisfiable are the contestant's requests, for a GPU model that no node
// has.
func (c contestant) unsatisfiable() []resourceapi.DeviceRequest {
	selector := resourceapi.DeviceSelector{CEL: &resourceapi.CELDeviceSelector{Expression: unknownModel}}
	requests := make([]resourceapi.DeviceRequest, 0, len(c.requests))
	for _, r := range c.requests {
		r = *r.DeepCopy()
		if r.Exactly != nil {
			r.Exactly.Selectors = append(r.Exactly.Selectors, selector)
		}
		for i := range r.FirstAvailable {
			r.FirstAvailable[i].Selectors = append(r.FirstAvailable[i].Selectors, selector)
		}
		requests = append(requests, r)
	}
	return requests
}

// ofUnknownModel are the classes, each for a GPU model that no node has, as
// there are classes per model: with one selector that says it all.
func ofUnknownModel(classes allocatortest.Classes) allocatortest.Classes {
	out := make(allocatortest.Classes, 0, len(classes))
	for _, class := range classes {
		class = class.DeepCopy()
		for i := range class.Spec.Selectors {
			class.Spec.Selectors[i].CEL.Expression += " && " + unknownModel
		}
		out = append(out, class)
	}
	return out
}

// named are the contestants with these modes, or all where none is named.
func named(all []contestant, names []string) []contestant {
	if len(names) == 0 {
		return all
	}
	return slices.DeleteFunc(all, func(c contestant) bool { return !slices.Contains(names, string(c.mode)) })
}
