// SPDX-License-Identifier: Apache-2.0

package view_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/ptr"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/devices"
	"github.com/gpushare/dra-driver-gpushare/pkg/devices/view"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
	"github.com/gpushare/dra-driver-gpushare/pkg/mode"
)

var (
	a10 = gpu.GPU{Model: "NVIDIA-A10", MemoryMiB: 23028}
	t4  = gpu.GPU{Model: "Tesla-T4", MemoryMiB: 15360}
)

// published are GPUs as the driver publishes them in a mode, the first with the index.
func published(m mode.Mode, first int, gpus ...gpu.GPU) []resourceapi.Device {
	return devices.Build(machineOf(first, gpus...), devices.Options{Pool: "p", Mode: m, Slots: 20,
		Isolation: "none"}).Pools["p"].Slices[0].Devices
}

// machineOf has these GPUs, the first with the index.
func machineOf(first int, gpus ...gpu.GPU) *gpu.Machine {
	machine := &gpu.Machine{}
	for i, g := range gpus {
		g.Index, g.UUID = first+i, fmt.Sprintf("GPU-%d", first+i)
		machine.GPUs = append(machine.GPUs, g)
	}
	return machine
}

// slice is one of count slices of a generation of node n's pool.
func slice(generation, count int64, devices ...resourceapi.Device) *resourceapi.ResourceSlice {
	return &resourceapi.ResourceSlice{Spec: resourceapi.ResourceSliceSpec{
		Driver: v1alpha1.DriverName, NodeName: ptr.To("n"), Devices: devices,
		Pool: resourceapi.ResourcePool{Name: v1alpha1.PoolName("n"), Generation: generation, ResourceSliceCount: count},
	}}
}

// set is a device that stands for two GPUs.
func set() resourceapi.Device {
	d := published(mode.Topology, 0, a10)[0]
	d.Name = "gpus-0-1"
	d.Attributes["gpuCount"] = resourceapi.DeviceAttribute{IntValue: ptr.To(int64(2))}
	return d
}

// What a node shows to legacy tools is what its GPUs have; pods without a claim are
// in their tables, too.
func TestGPUsOfWhichSomeIsHeldWithoutClaim(t *testing.T) {
	resources := devices.Build(machineOf(0, a10), devices.Options{
		Pool: "p", Mode: mode.CoreMem, Slots: 20, Room: map[string]gpu.Amount{"GPU-0": {Units: 3, Cores: 20, Shares: 1}},
		GPUTaints: map[string][]resourceapi.DeviceTaint{
			"GPU-0": {{Key: v1alpha1.TaintHeld, Effect: resourceapi.DeviceTaintEffectNoSchedule}}},
	})
	got, whole := view.Offered("n", []*view.Slice{view.Read(slice(1, 1, resources.Pools["p"].Slices[0].Devices...))})
	expect.Equal(t, []view.GPU{{Model: a10.Model, MemoryMiB: a10.MemoryMiB, Mode: mode.CoreMem}}, got, "GPUs")
	if !whole {
		t.Error("the pool is not whole")
	}
}

func TestPool(t *testing.T) {
	one := func(index int64, g gpu.GPU, m mode.Mode) view.GPU {
		return view.GPU{Index: index, Model: g.Model, MemoryMiB: g.MemoryMiB, Mode: m}
	}
	old := published(mode.Exclusive, 0, t4)[0]
	delete(old.Attributes, v1alpha1.AttrMemoryMiB)
	other := slice(9, 1, published(mode.Share, 0, t4)...)
	other.Spec.Pool.Name = "n"
	tests := map[string]struct {
		published []*resourceapi.ResourceSlice
		want      []view.GPU
		whole     bool
	}{
		"nothing": {nil, nil, false},
		"no GPUs": {[]*resourceapi.ResourceSlice{slice(1, 1)}, nil, true},
		"one slice": {[]*resourceapi.ResourceSlice{slice(1, 1, published(mode.Share, 0, a10)...)},
			[]view.GPU{one(0, a10, mode.Share)}, true},
		"by index": {[]*resourceapi.ResourceSlice{slice(1, 2, published(mode.Share, 1, t4)...), slice(1, 2, published(
			mode.Share, 0, a10)...)}, []view.GPU{one(0, a10, mode.Share), one(1, t4, mode.Share)}, true},
		"in part": {[]*resourceapi.ResourceSlice{slice(1, 2, published(mode.Share, 1, t4)...)}, nil, false},
		"newer in part": {[]*resourceapi.ResourceSlice{slice(1, 1, published(mode.Share, 0, t4)...), slice(2, 2, published(
			mode.Share, 0, a10)...)}, nil, false},
		"newer": {[]*resourceapi.ResourceSlice{slice(2, 1, published(mode.Share, 0, a10)...), slice(1, 1, published(
			mode.Share, 0, t4)...)}, []view.GPU{one(0, a10, mode.Share)}, true},
		"sets of GPUs": {
			[]*resourceapi.ResourceSlice{
				slice(1, 1, append([]resourceapi.Device{set()}, published(mode.Topology, 0, a10)...)...)},
			[]view.GPU{one(0, a10, mode.Topology)}, true},
		"several modes": {
			[]*resourceapi.ResourceSlice{slice(1, 1, append(published(mode.Share, 0, a10), published(mode.CGPU, 0, a10)...)...)},
			[]view.GPU{one(0, a10, mode.CGPU)}, true},
		"says too little": {[]*resourceapi.ResourceSlice{slice(1, 1, old)}, nil, true},
		"another pool":    {[]*resourceapi.ResourceSlice{other}, nil, false},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			got, whole := view.Pool("n", read(test.published))
			if !slices.Equal(test.want, got) || whole != test.whole {
				t.Errorf("whole %v, GPUs %v", whole, expect.Diff(test.want, got))
			}
		})
	}
}

// A pool with linked sets is several slices: counters, sets, GPUs.
func TestPoolWithLinkedSets(t *testing.T) {
	machine := machineOf(0, a10, a10, a10, a10)
	for _, pair := range [][2]int{{0, 1}, {2, 3}} {
		machine.Links = append(machine.Links, gpu.Link{A: pair[0], B: pair[1], Kind: gpu.LinkNVLink, Lanes: 2, Generation: 2,
			GBps: 50})
	}
	var published []*resourceapi.ResourceSlice
	sets := 0
	built := devices.Build(machine, devices.Options{Pool: "p", Mode: mode.Topology}).Pools["p"].Slices
	for _, s := range built {
		published = append(published, slice(1, int64(len(built)), s.Devices...))
		for _, device := range s.Devices {
			if strings.HasPrefix(device.Name, "gpus-") {
				sets++
			}
		}
	}
	if sets == 0 || len(built) < 2 {
		t.Fatalf("%d sets in %d slices: the test shows nothing", sets, len(built))
	}
	got, whole := view.Pool("n", read(published))
	if !whole || len(got) != 4 {
		t.Errorf("whole %v, GPUs %v, want 4", whole, got)
	}
	models := view.Models(read(published))
	expect.Equal(t, []view.Model{{Name: "NVIDIA-A10", Modes: []mode.Mode{mode.Topology}}}, models, "models")
}

func read(published []*resourceapi.ResourceSlice) []*view.Slice {
	var out []*view.Slice
	for _, slice := range published {
		out = append(out, view.Read(slice))
	}
	return out
}

func TestModels(t *testing.T) {
	got := view.Models(read([]*resourceapi.ResourceSlice{
		slice(2, 3, append(published(mode.Share, 0, t4, a10), set())...),
		slice(1, 1, append(published(mode.CGPU, 0, a10), published(mode.Share, 0, a10)...)...),
	}))
	want := []view.Model{
		{Name: "NVIDIA-A10", Modes: []mode.Mode{mode.CGPU, mode.Share}},
		{Name: "Tesla-T4", Modes: []mode.Mode{mode.Share}},
	}
	expect.Equal(t, want, got, "models")
}

// A GPU in MIG mode is none that tables and node labels count; its instances' profiles are kept.
func TestInstancesAreNoGPUs(t *testing.T) {
	machine := machineOf(0, a10)
	for i, profile := range []string{"3g.40gb", "1g.10gb+me", "1g.10gb", "1g.10gb"} {
		p := gpu.Partitioned{GPU: gpu.GPU{Index: 1 + i/2, UUID: fmt.Sprintf("GPU-%d", 1+i/2), Model: "A100",
			MemoryMiB: 81920}}
		p.Instances = []gpu.Instance{{UUID: fmt.Sprintf("MIG-%d", i), Profile: profile, Start: i, Size: 1, MemoryMiB: 9728}}
		machine.Partitioned = append(machine.Partitioned, p)
	}
	offered := slice(1, 1, devices.Build(machine, devices.Options{Pool: "p", Mode: mode.Share, Slots: 20}).
		Pools["p"].Slices[0].Devices...)
	kept := view.Read(offered)
	gpus, whole := view.Pool("n", []*view.Slice{kept})
	if len(gpus) != 1 || !whole || gpus[0].Model != a10.Model {
		t.Errorf("GPUs %v", gpus)
	}
	expect.Equal(t, []view.Model{{Name: "NVIDIA-A10", Modes: []mode.Mode{mode.Share}}},
		view.Models([]*view.Slice{kept}), "models")
	got := view.Profiles([]*view.Slice{kept, kept})
	expect.Equal(t, []string{"1g.10gb", "1g.10gb+me", "3g.40gb"}, got, "profiles")
}

// Nodes whose GPUs are cut alike have one shape, and constraints tell their instances apart.
func TestShapeOfInstances(t *testing.T) {
	node := func(name string) *view.Slice {
		machine := &gpu.Machine{Partitioned: []gpu.Partitioned{{GPU: gpu.GPU{UUID: "GPU-" + name, Model: "A100"}}}}
		for i := range 2 {
			machine.Partitioned[0].Instances = append(machine.Partitioned[0].Instances, gpu.Instance{
				UUID: fmt.Sprintf("MIG-%s-%d", name, i), Profile: "1g.10gb", Start: i, Size: 1, MemoryMiB: 9728})
		}
		return view.Read(slice(1, 1, devices.Build(machine, devices.Options{Pool: "p", Mode: mode.Exclusive}).
			Pools["p"].Slices[0].Devices...))
	}
	a, b := node("a"), node("b")
	expect.Equal(t, true, a.Shape == b.Shape, "nodes that differ in UUIDs alone have one shape")
	for _, withUUIDs := range []bool{true, false} {
		pool, err := view.NewPools(withUUIDs).ForAllocator("n", []*view.Slice{a})
		expect.NoError(t, err)
		first, second := pool[0].Spec.Devices[0].Attributes, pool[0].Spec.Devices[1].Attributes
		if *first[v1alpha1.AttrUUID].StringValue == *second[v1alpha1.AttrUUID].StringValue {
			t.Errorf("with UUIDs: %t: both instances have the UUID %s", withUUIDs, *first[v1alpha1.AttrUUID].StringValue)
		}
		if parent := first[v1alpha1.AttrParentUUID].StringValue; parent == nil || withUUIDs && *parent != "GPU-a" ||
			*parent != *second[v1alpha1.AttrParentUUID].StringValue {
			t.Errorf("with UUIDs: %t: parent %v", withUUIDs, parent)
		}
	}
}

func TestTransformKeepsWhatInformersNeed(t *testing.T) {
	published := slice(1, 1, published(mode.Share, 0, a10)...)
	published.ObjectMeta = metav1.ObjectMeta{Name: "s", UID: "u", ResourceVersion: "7",
		Labels: map[string]string{"a": "b"}}
	kept, err := view.Transform(published)
	expect.NoError(t, err)
	if key, err := cache.MetaNamespaceKeyFunc(kept); key != "s" || err != nil {
		t.Errorf("key %q, %v", key, err)
	}
	if got := kept.(*view.Slice); got.UID != "u" || got.ResourceVersion != "7" || got.Node != "n" {
		t.Errorf("kept %+v", got)
	}
	// Informers transform what they hold a second time.
	if again, err := view.Transform(kept); err != nil || again != kept {
		t.Errorf("transformed again: %v, %v", again, err)
	}
}

// Where shares are spread, a node publishes its GPUs in another order with each claim.
func TestSlicesThatOfferTheSame(t *testing.T) {
	slice := func(generation, count int64, devices ...resourceapi.Device) *view.Slice {
		published := slice(generation, count, devices...)
		published.ObjectMeta = metav1.ObjectMeta{Name: "s", ResourceVersion: fmt.Sprint(generation)}
		return view.Read(published)
	}
	device := func(name string, taints ...resourceapi.DeviceTaint) resourceapi.Device {
		return resourceapi.Device{Name: name, Taints: taints,
			Attributes: map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{
				v1alpha1.AttrUUID: {StringValue: ptr.To("GPU-" + name)},
			}}
	}
	a, b := device("a"), device("b")
	first := slice(1, 1, a, b)
	for name, test := range map[string]struct {
		one, other *view.Slice
		want       bool
	}{
		"another order": {first, slice(2, 1, b, a), true},
		"a taint": {first,
			slice(2, 1, a, device("b", resourceapi.DeviceTaint{Key: "k", Effect: resourceapi.DeviceTaintEffectNoSchedule})),
			false},
		"a GPU less":             {first, slice(2, 1, a), false},
		"one of two":             {slice(1, 2, a), slice(2, 2, a), false},
		"one of two, no news":    {slice(1, 2, a), slice(1, 2, a), true},
		"one of two, now of one": {slice(1, 2, a), slice(2, 1, a), false},
	} {
		expect.Equal(t, test.want, test.one.Offers(test.other), "%s", name)
	}
}
