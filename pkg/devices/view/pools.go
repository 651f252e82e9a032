// SPDX-License-Identifier: Apache-2.0

package view

import (
	"fmt"
	"maps"

	resourceapi "k8s.io/api/resource/v1"

	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
)

// Pools decodes the pools of many nodes for the scheduler's allocator. Nodes that are alike
// share their devices, which nobody may change: a thousand such nodes cost as much as one.
type Pools struct {
	// apart is whether GPUs have their UUIDs; without, they have one that differs within a node.
	apart bool
	known map[Shape]decoded
}

// decoded is what a shape offers.
type decoded struct {
	devices  []resourceapi.Device
	counters []resourceapi.CounterSet
}

// NewPools makes Pools. Where GPUs are to have their UUIDs, nothing is shared.
func NewPools(withUUIDs bool) *Pools { return &Pools{withUUIDs, map[Shape]decoded{}} }

// ForAllocator are the slices of a node's pool as the scheduler's allocator takes them.
func (p *Pools) ForAllocator(node string, pool []*Slice) ([]*resourceapi.ResourceSlice, error) {
	if p.apart {
		return ForAllocator(node, pool)
	}
	return slicesOf(node, pool, func(s *Slice) ([]resourceapi.Device, []resourceapi.CounterSet, error) {
		offered, err := p.decode(s.Shape)
		return offered.devices, offered.counters, err
	})
}

func (p *Pools) decode(shape Shape) (decoded, error) {
	if known, ok := p.known[shape]; ok {
		return known, nil
	}
	offered, counters, err := shape.Offer()
	if err != nil {
		return decoded{}, err
	}
	for i := range offered {
		offered[i].Attributes = WithUUID(offered[i].Attributes)
	}
	p.known[shape] = decoded{offered, counters}
	return p.known[shape], nil
}

// WithUUID returns attributes with a UUID, by which constraints tell the GPUs of a node apart, and
// the instances of a GPU; where there is none, one that says which of the node it is.
func WithUUID(
	attributes map[resourceapi.QualifiedName]resourceapi.DeviceAttribute,
) map[resourceapi.QualifiedName]resourceapi.DeviceAttribute {
	index := attributes[v1alpha1.AttrIndex].IntValue
	if _, has := attributes[v1alpha1.AttrUUID]; has || index == nil {
		return attributes
	}
	gpu := fmt.Sprintf("GPU %d", *index)
	uuid := gpu
	out := maps.Clone(attributes)
	if start := attributes[v1alpha1.AttrPlacementStart].IntValue; start != nil {
		uuid += fmt.Sprintf(" at %d", *start)
		setUUID(out, v1alpha1.AttrParentUUID, nvidiaParentUUID, &gpu)
	}
	setUUID(out, v1alpha1.AttrUUID, nvidiaUUID, &uuid)
	return out
}
