// SPDX-License-Identifier: Apache-2.0

package scheduling

import (
	"context"
	"slices"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/dynamic-resource-allocation/deviceattribute"
	"k8s.io/dynamic-resource-allocation/structured"
	"k8s.io/utils/ptr"

	"github.com/gpushare/dra-driver-gpushare/pkg/legacy"
)

// CPUs is what a node has of the CPUs that claims ask for by the DeviceClass of dra-driver-cpu.
type CPUs struct {
	// Asked are the amounts, of each claim that asks for some.
	Asked []int64
	// GPUs reports whether the claims ask for GPUs, too; GPUNodes are the NUMA nodes of those that serve them.
	GPUs     bool
	GPUNodes []int64
	// By is what the CPUs of a device have in common, Free are those that are free of each device, in the order of NUMA
	// nodes where these are known. Without devices there are none.
	By   legacy.Grouping
	Free []FreeCPUs
}

// FreeCPUs are those of a device; NUMANode is meant for legacy.ByNUMANode.
type FreeCPUs struct{ NUMANode, CPUs int64 }

// ofOthers is what a node lacks that serves all requests for GPUs: CPUs, if these are all that is asked of other
// drivers.
func (l *looker) ofOthers(ctx context.Context, o *offer, node string, claims []*resourceapi.ResourceClaim) Lack {
	others := Lack{Kind: OfOthers, Node: node, Claims: claims}
	cpus := &CPUs{}
	for _, claim := range claims {
		without, amount := legacy.WithoutCPUs(claim)
		if amount > 0 {
			cpus.Asked = append(cpus.Asked, amount)
		}
		for i := range without.Spec.Devices.Requests {
			for _, r := range Served(&without.Spec.Devices.Requests[i]) {
				class, err := l.classes.Get(r.Class)
				if err != nil || !r.OfDriver(class) {
					return others
				}
				cpus.GPUs = true
				for _, d := range o.devices {
					numaNode := d.Attributes[deviceattribute.StandardDeviceAttributeNUMANode].IntValue
					if numaNode != nil && l.look(ctx, o, d, class, r, map[*resourceapi.Device]Seen{}).Step == Suits {
						cpus.GPUNodes = append(cpus.GPUNodes, *numaNode)
					}
				}
			}
		}
	}
	if len(cpus.Asked) == 0 {
		return others
	}
	slices.Sort(cpus.GPUNodes)
	cpus.GPUNodes = slices.Compact(cpus.GPUNodes)
	l.addFree(cpus, node)
	// The GPUs are there: no node comes nearer that does not have them.
	return Lack{Kind: OfCPUs, Node: node, Claims: claims, Step: Suits, CPUs: cpus}
}

// addFree adds what dra-driver-cpu publishes on a node.
func (l *looker) addFree(cpus *CPUs, node string) {
	for _, slice := range l.slices {
		if slice.Spec.Driver != legacy.ClassCPUs || ptr.Deref(slice.Spec.NodeName, "") != node {
			continue
		}
		for i := range slice.Spec.Devices {
			d := &slice.Spec.Devices[i]
			by, numaNode := legacy.GroupingOf(d)
			left := d.Capacity[legacy.CapacityCPUs].Value.DeepCopy()
			id := structured.MakeDeviceID(slice.Spec.Driver, slice.Spec.Pool.Name, d.Name)
			if used := l.state.AggregatedCapacity[id][legacy.CapacityCPUs]; used != nil {
				left.Sub(*used)
			}
			cpus.By, cpus.Free = by, append(cpus.Free, FreeCPUs{numaNode, max(0, left.Value())})
		}
	}
	slices.SortStableFunc(cpus.Free, func(a, b FreeCPUs) int { return int(a.NUMANode - b.NUMANode) })
}
