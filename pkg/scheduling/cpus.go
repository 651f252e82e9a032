// SPDX-License-Identifier: Apache-2.0

package scheduling

import (
	"context"
	"maps"
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
	// Published reports whether the node has such devices, By is what the CPUs of one have in common.
	Published bool
	By        legacy.Grouping
	// Free are the CPUs that are free of each device, in the order of NUMA nodes where these are known.
	Free []FreeCPUs
}

// FreeCPUs are those of a device; NUMANode is meant for legacy.ByNUMANode.
type FreeCPUs struct {
	NUMANode, Free int64
}

// ofOthers is what a node lacks that serves all requests for GPUs: CPUs, if these are all that is asked of other
// drivers.
func (l *looker) ofOthers(ctx context.Context, o *offer, node string, claims []*resourceapi.ResourceClaim) Lack {
	others := Lack{Kind: OfOthers, Node: node, Claims: claims}
	cpus, gpuNodes := &CPUs{}, map[int64]bool{}
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
				judged := map[*resourceapi.Device]Seen{}
				for _, d := range o.devices {
					numaNode := d.Attributes[deviceattribute.StandardDeviceAttributeNUMANode].IntValue
					if numaNode != nil && l.look(ctx, o, d, class, r, judged).Step == Suits {
						gpuNodes[*numaNode] = true
					}
				}
			}
		}
	}
	if len(cpus.Asked) == 0 {
		return others
	}
	cpus.GPUNodes = slices.Sorted(maps.Keys(gpuNodes))
	l.addFree(cpus, node)
	// The GPUs are there: no node comes nearer that does not have them.
	return Lack{Kind: OfCPUs, Node: node, Claims: claims, Step: Suits, CPUs: cpus}
}

// addFree adds what dra-driver-cpu publishes on a node.
func (l *looker) addFree(cpus *CPUs, node string) {
	for _, slice := range l.slicesOfCPUs(node) {
		for i := range slice.Spec.Devices {
			d := &slice.Spec.Devices[i]
			by, numaNode := legacy.GroupingOf(d)
			left := d.Capacity[legacy.CapacityCPUs].Value.DeepCopy()
			id := structured.MakeDeviceID(slice.Spec.Driver, slice.Spec.Pool.Name, d.Name)
			if used := l.state.AggregatedCapacity[id][legacy.CapacityCPUs]; used != nil {
				left.Sub(*used)
			}
			cpus.Published, cpus.By = true, by
			cpus.Free = append(cpus.Free, FreeCPUs{numaNode, max(0, left.Value())})
		}
	}
	slices.SortStableFunc(cpus.Free, func(a, b FreeCPUs) int { return int(a.NUMANode - b.NUMANode) })
}

// slicesOfCPUs are those of dra-driver-cpu of a node, in the newest generation.
func (l *looker) slicesOfCPUs(node string) (newest []*resourceapi.ResourceSlice) {
	for _, slice := range l.slices {
		if slice.Spec.Driver != legacy.ClassCPUs || ptr.Deref(slice.Spec.NodeName, "") != node {
			continue
		}
		switch {
		case len(newest) == 0 || slice.Spec.Pool.Generation > newest[0].Spec.Pool.Generation:
			newest = []*resourceapi.ResourceSlice{slice}
		case slice.Spec.Pool.Generation == newest[0].Spec.Pool.Generation:
			newest = append(newest, slice)
		}
	}
	return newest
}
