// SPDX-License-Identifier: Apache-2.0

// Package view reads a node's GPUs out of the ResourceSlices that the driver
// publishes, as far as the controller needs to know them.
package view

import (
	"cmp"
	"slices"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/devices"
	"github.com/gpushare/dra-driver-gpushare/pkg/mode"
)

// GPU is one GPU in one mode.
type GPU struct {
	Index     int64
	Model     string
	MemoryMiB int64
	Mode      mode.Mode
}

// Slice is what the controller keeps of a ResourceSlice, small enough to be kept
// of each node of a large cluster.
type Slice struct {
	metav1.ObjectMeta
	// Node is empty where the slice is not of one node.
	Node string
	Pool resourceapi.ResourcePool
	GPUs []GPU
	// Profiles are those of the MIG instances in the slice, each once, in order.
	Profiles []string
	// Spread is whether something may be held back of its devices to spread shares.
	Spread bool
	// Shape holds the slice's devices, UUIDs what it does not hold of them, in the
	// order of the devices' names; empty for a device that has none.
	Shape Shape
	UUIDs []string
	// Parents are, in the same order, the UUIDs of the GPUs that MIG instances are part of; nil where
	// there are none.
	Parents []string
}

// Read returns what there is to keep of a slice, which stays as it is.
func Read(slice *resourceapi.ResourceSlice) *Slice { return read(slice, false) }

// read is Read; own says that the slice is the caller's alone, and nobody reads it afterwards.
func read(slice *resourceapi.ResourceSlice, own bool) *Slice {
	shape, uuids, parents := shapeOf(slice, own)
	kept := &Slice{
		ObjectMeta: metav1.ObjectMeta{Name: slice.Name, UID: slice.UID, ResourceVersion: slice.ResourceVersion},
		Node:       ptr.Deref(slice.Spec.NodeName, ""),
		Pool:       slice.Spec.Pool,
		Shape:      shape,
		UUIDs:      uuids,
		Parents:    parents,
	}
	for _, device := range slice.Spec.Devices {
		if device.Attributes[v1alpha1.AttrMaxShares].IntValue != nil {
			kept.Spread = true
		}
		if g, ok := gpuOf(device); ok {
			kept.GPUs = append(kept.GPUs, g)
		}
		kept.Profiles = append(kept.Profiles, profile(device)...)
	}
	slices.Sort(kept.Profiles)
	kept.Profiles = slices.Compact(kept.Profiles)
	return kept
}

// Offers reports whether the slice offers what the other one does, in whatever order. Where
// a pool has several slices, they have to be of one generation.
func (s *Slice) Offers(other *Slice) bool {
	one := s.Pool.ResourceSliceCount == 1
	a, b := s.Pool, other.Pool
	if one {
		a.Generation, b.Generation = 0, 0
	}
	return s.Name == other.Name && s.Node == other.Node && a == b && s.Shape == other.Shape &&
		slices.Equal(s.UUIDs, other.UUIDs)
}

// profile is that of a MIG instance, and nothing of any other device.
func profile(d resourceapi.Device) []string {
	profile := ptr.Deref(d.Attributes[v1alpha1.AttrProfile].StringValue, "")
	if profile == "" || !isInstance(d) {
		return nil
	}
	return []string{profile}
}

func isInstance(d resourceapi.Device) bool {
	return ptr.Deref(d.Attributes[v1alpha1.AttrMode].StringValue, "") == string(mode.MIG)
}

// gpuOf returns the GPU that a device stands for. It is false for a device that
// stands for several GPUs, for a MIG instance, which is a part of one that is not offered, and for a
// device that does not say all of it.
func gpuOf(d resourceapi.Device) (GPU, bool) {
	index, model := d.Attributes[v1alpha1.AttrIndex].IntValue, d.Attributes[v1alpha1.AttrModel].StringValue
	memory, served := d.Attributes[v1alpha1.AttrMemoryMiB].IntValue, d.Attributes[v1alpha1.AttrMode].StringValue
	count := d.Attributes[v1alpha1.AttrGPUCount].IntValue
	if index == nil || model == nil || memory == nil || served == nil || count != nil && *count != 1 || isInstance(d) {
		return GPU{}, false
	}
	return GPU{Index: *index, Model: *model, MemoryMiB: *memory, Mode: mode.Mode(*served)}, true
}

// Transform is a transform for informers of ResourceSlices: they hold a *Slice for
// each, and nobody has what they decoded beside them.
func Transform(object any) (any, error) {
	if slice, ok := object.(*resourceapi.ResourceSlice); ok {
		return read(slice, true), nil
	}
	return object, nil
}

// Pool returns the GPUs of a node's pool, each once, ordered by index. It is
// false while the pool is not whole: its newest generation is published in part,
// or nothing is.
func Pool(node string, published []*Slice) ([]GPU, bool) {
	offered, whole := Offered(node, published)
	return slices.CompactFunc(offered, func(a, b GPU) bool { return a.Index == b.Index }), whole
}

// Offered is Pool with each GPU once for each mode that it is offered in, ordered
// by index, then by mode.
func Offered(node string, published []*Slice) ([]GPU, bool) {
	newest, whole := Newest(node, published)
	if !whole {
		return nil, false
	}
	gpus := all(newest)
	slices.SortStableFunc(gpus,
		func(a, b GPU) int { return cmp.Or(cmp.Compare(a.Index, b.Index), cmp.Compare(a.Mode, b.Mode)) })
	return gpus, true
}

// Newest returns the slices of a node's pool that the scheduler uses, those of
// the newest generation. It is false where they are not all there, in which case
// the scheduler allocates nothing of them.
func Newest(node string, published []*Slice) ([]*Slice, bool) {
	var of []*Slice
	for _, slice := range published {
		if slice.Pool.Name == v1alpha1.PoolName(node) {
			of = append(of, slice)
		}
	}
	newest := devices.Newest(of, func(s *Slice) resourceapi.ResourcePool { return s.Pool })
	return newest, len(newest) > 0 && int64(len(newest)) == newest[0].Pool.ResourceSliceCount
}

// Model is a GPU model and the modes that its GPUs are served in.
type Model struct {
	Name  string
	Modes []mode.Mode
}

// Models lists the GPU models of all slices, ordered by name, their modes
// ordered too. Pools that are not whole count: their GPUs are there.
func Models(published []*Slice) []Model {
	gpus := all(published)
	slices.SortFunc(gpus,
		func(a, b GPU) int { return cmp.Or(cmp.Compare(a.Model, b.Model), cmp.Compare(a.Mode, b.Mode)) })
	var models []Model
	for _, g := range gpus {
		if len(models) == 0 || models[len(models)-1].Name != g.Model {
			models = append(models, Model{Name: g.Model})
		}
		last := &models[len(models)-1]
		if len(last.Modes) == 0 || last.Modes[len(last.Modes)-1] != g.Mode {
			last.Modes = append(last.Modes, g.Mode)
		}
	}
	return models
}

// Profiles lists the profiles of the MIG instances of all slices, ordered. Pools that are not whole
// count, as for Models.
func Profiles(published []*Slice) []string {
	var profiles []string
	for _, slice := range published {
		profiles = append(profiles, slice.Profiles...)
	}
	slices.Sort(profiles)
	return slices.Compact(profiles)
}

func all(published []*Slice) []GPU {
	var gpus []GPU
	for _, slice := range published {
		gpus = append(gpus, slice.GPUs...)
	}
	return gpus
}
