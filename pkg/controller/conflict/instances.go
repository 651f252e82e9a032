// SPDX-License-Identifier: Apache-2.0

package conflict

import (
	"fmt"
	"slices"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/utils/ptr"

	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/devices"
	"github.com/gpushare/dra-driver-gpushare/pkg/devices/view"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
	"github.com/gpushare/dra-driver-gpushare/pkg/mode"
)

// PartitionedOf returns the GPUs in MIG mode of which a node publishes instances, as far as claims are judged by them.
// They have no order. Nothing is returned while the pool is not whole.
func PartitionedOf(node string, published []*view.Slice) ([]gpu.Partitioned, error) {
	newest, whole := view.Newest(node, published)
	if !whole {
		return nil, nil
	}
	var found []gpu.Partitioned
	for _, slice := range newest {
		if slice.Parents == nil {
			continue // no device of it is an instance
		}
		offered, _, err := slice.Offer()
		if err != nil {
			return nil, fmt.Errorf("MIG instances of node %s: ResourceSlice %s: %w", node, slice.Name, err)
		}
		for i := range offered {
			index, m, err := devices.ParseDeviceName(offered[i].Name)
			if err == nil && m == mode.MIG {
				found = withInstance(found, index[0], &offered[i])
			}
		}
	}
	return found, nil
}

// withInstance adds an instance to its GPU, or the profile of one that would be made.
func withInstance(found []gpu.Partitioned, index int, d *resourceapi.Device) []gpu.Partitioned {
	number := func(name resourceapi.QualifiedName) int { return int(ptr.Deref(d.Attributes[name].IntValue, 0)) }
	text := func(name resourceapi.QualifiedName) string { return ptr.Deref(d.Attributes[name].StringValue, "") }
	at := slices.IndexFunc(found, func(p gpu.Partitioned) bool { return p.Index == index })
	if at < 0 {
		at = len(found)
		found = append(found, gpu.Partitioned{GPU: gpu.GPU{Index: index, UUID: text(v1alpha1.AttrParentUUID),
			Model: text(v1alpha1.AttrModel)}})
	}
	// The ids are not published. No two instances begin at one slice, so those are as good to tell them apart.
	instance := gpu.Instance{InstanceID: gpu.InstanceID{GI: number(v1alpha1.AttrPlacementStart)},
		UUID: text(v1alpha1.AttrUUID), ProfileID: number(v1alpha1.AttrProfileID), Profile: text(v1alpha1.AttrProfile),
		Start: number(v1alpha1.AttrPlacementStart), Size: number(v1alpha1.AttrPlacementSize),
		MemoryMiB: int64(number(v1alpha1.AttrMemoryMiB))}
	p := &found[at]
	if len(d.ConsumesCounters) == 0 {
		p.Instances = append(p.Instances, instance)
		return found
	}
	start := instance.Start
	instance.InstanceID, instance.UUID, instance.Start = gpu.InstanceID{GI: gpu.NoCI, CI: gpu.NoCI}, "", 0
	p.Profiles = append(p.Profiles, gpu.Profile{Kind: instance, Starts: []int{start}, Count: 1})
	return found
}
