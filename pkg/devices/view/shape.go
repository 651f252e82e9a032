// SPDX-License-Identifier: Apache-2.0

package view

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"unique"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/nvidia"
	"github.com/gpushare/dra-driver-gpushare/pkg/devices"
)

// Shape is all that a ResourceSlice offers, apart from which GPUs of their kind
// they are: the slices of nodes that are alike differ in their GPUs' UUIDs, and in
// when their taints were added, alone and have one shape, which is kept once. Shapes can be compared. The zero Shape
// is that of a slice that could not be encoded.
type Shape struct{ encoded unique.Handle[string] }

// shapeOf returns the shape of a slice and the UUIDs of its devices, which are in
// the order of their names: a slice in another order offers the same. parents are those of the GPUs
// that MIG instances are part of, nil where there are none. The UUIDs are taken out of the devices where the slice is
// the caller's alone (own), and out of copies where it is not.
func shapeOf(slice *resourceapi.ResourceSlice, own bool) (shape Shape, uuids, parents []string) {
	sorted := slices.Clone(slice.Spec.Devices)
	slices.SortFunc(sorted, func(a, b resourceapi.Device) int { return strings.Compare(a.Name, b.Name) })
	uuids = make([]string, len(sorted))
	for i := range sorted {
		d := &sorted[i]
		d.Capacity = devices.Unlimited(d)
		d.Taints = withoutTimes(d.Taints)
		uuid := d.Attributes[v1alpha1.AttrUUID].StringValue
		if uuid == nil {
			continue
		}
		uuids[i] = *uuid
		if parent := d.Attributes[v1alpha1.AttrParentUUID].StringValue; parent != nil {
			if parents == nil {
				parents = make([]string, len(sorted))
			}
			parents[i] = *parent
		}
		if !own {
			d.Attributes = maps.Clone(d.Attributes)
		}
		takeUUID(d.Attributes, v1alpha1.AttrUUID, nvidiaUUID)
		takeUUID(d.Attributes, v1alpha1.AttrParentUUID, nvidiaParentUUID)
	}
	encoded, err := (&resourceapi.ResourceSliceSpec{Devices: sorted, SharedCounters: slice.Spec.SharedCounters}).Marshal()
	if err != nil {
		return Shape{}, nil, nil
	}
	return Shape{unique.Make(string(encoded))}, uuids, parents
}

// Where claims for NVIDIA's driver are served, devices have their UUIDs under its names, too.
const (
	nvidiaUUID       = nvidia.DriverName + "/" + v1alpha1.AttrUUID
	nvidiaParentUUID = nvidia.DriverName + "/" + v1alpha1.AttrParentUUID
)

// takeUUID removes a UUID. That it is there under NVIDIA's name remains.
func takeUUID(attributes map[resourceapi.QualifiedName]resourceapi.DeviceAttribute,
	name, ofNVIDIA resourceapi.QualifiedName) {
	delete(attributes, name)
	if _, is := attributes[ofNVIDIA]; is {
		attributes[ofNVIDIA] = resourceapi.DeviceAttribute{StringValue: new(string)}
	}
}

// setUUID sets a UUID that was taken.
func setUUID(attributes map[resourceapi.QualifiedName]resourceapi.DeviceAttribute,
	name, ofNVIDIA resourceapi.QualifiedName, uuid *string) {
	attributes[name] = resourceapi.DeviceAttribute{StringValue: uuid}
	if _, is := attributes[ofNVIDIA]; is {
		attributes[ofNVIDIA] = attributes[name]
	}
}

// withoutTimes are taints without the times at which they were added, which differ from node to node. No allocation
// depends on them.
func withoutTimes(taints []resourceapi.DeviceTaint) []resourceapi.DeviceTaint {
	out := slices.Clone(taints)
	for i := range out {
		out[i].TimeAdded = nil
	}
	return out
}

// Offer returns the devices of a shape, ordered by name and without UUIDs, and the
// counters. The caller may change them.
func (s Shape) Offer() ([]resourceapi.Device, []resourceapi.CounterSet, error) {
	if s == (Shape{}) {
		return nil, nil, errors.New("what a ResourceSlice offers could not be encoded")
	}
	var spec resourceapi.ResourceSliceSpec
	if err := spec.Unmarshal([]byte(s.encoded.Value())); err != nil {
		return nil, nil, fmt.Errorf("decode what a ResourceSlice offers: %w", err)
	}
	return spec.Devices, spec.SharedCounters, nil
}

// Offer decodes the slice's devices, with their UUIDs, and its counters. What it returns is
// the caller's.
func (s *Slice) Offer() ([]resourceapi.Device, []resourceapi.CounterSet, error) {
	offered, counters, err := s.Shape.Offer()
	if err != nil {
		return nil, nil, err
	}
	for i := range offered {
		if s.UUIDs[i] != "" {
			setUUID(offered[i].Attributes, v1alpha1.AttrUUID, nvidiaUUID, &s.UUIDs[i])
		}
		if s.Parents != nil && s.Parents[i] != "" {
			setUUID(offered[i].Attributes, v1alpha1.AttrParentUUID, nvidiaParentUUID, &s.Parents[i])
		}
	}
	return offered, counters, nil
}

// ForAllocator are the slices of a node's pool as the scheduler's allocator takes them.
func ForAllocator(node string, pool []*Slice) ([]*resourceapi.ResourceSlice, error) {
	return slicesOf(node, pool, (*Slice).Offer)
}

// slicesOf are the slices of a node's pool with what each offers.
func slicesOf(node string, pool []*Slice,
	offer func(*Slice) ([]resourceapi.Device, []resourceapi.CounterSet, error)) ([]*resourceapi.ResourceSlice, error) {
	var out []*resourceapi.ResourceSlice
	for _, s := range pool {
		offered, counters, err := offer(s)
		if err != nil {
			return nil, fmt.Errorf("node %s: ResourceSlice %s: %w", node, s.Name, err)
		}
		out = append(out, &resourceapi.ResourceSlice{
			ObjectMeta: metav1.ObjectMeta{Name: s.Name},
			Spec: resourceapi.ResourceSliceSpec{
				Driver: v1alpha1.DriverName, Pool: s.Pool, NodeName: &node, Devices: offered, SharedCounters: counters,
			},
		})
	}
	return out, nil
}
