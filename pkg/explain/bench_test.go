// SPDX-License-Identifier: Apache-2.0

package explain_test

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/devices"
	"github.com/gpushare/dra-driver-gpushare/pkg/devices/view"
	"github.com/gpushare/dra-driver-gpushare/pkg/explain"
	"github.com/gpushare/dra-driver-gpushare/pkg/mode"
	"github.com/gpushare/dra-driver-gpushare/pkg/scheduling"
)

// full is a cluster of 1000 nodes of eight GPUs, each with a share that leaves too little.
func full(b *testing.B) scheduling.Snapshot {
	b.Helper()
	s := scheduling.Snapshot{Classes: allClasses(b)}
	m := machine(b, "a100x8")
	pools := view.NewPools(false)
	for n := range 1000 {
		name := fmt.Sprintf("n%04d", n)
		s.Nodes = append(s.Nodes, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}})
		pool := v1alpha1.PoolName(name)
		var published []*view.Slice
		built := devices.Build(m, devices.Options{Pool: pool, Mode: mode.Share, Slots: 20, Isolation: "none"}).Pools[pool]
		for i, slice := range built.Slices {
			published = append(published, view.Read(&resourceapi.ResourceSlice{
				ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint(name, "-", i)},
				Spec:       devices.SliceSpec(name, pool, built, slice)}))
		}
		slices, err := pools.ForAllocator(name, published)
		expect.NoError(b, err)
		s.Slices = append(s.Slices, slices...)
		for _, d := range slices[0].Spec.Devices {
			held := claim(request("r", shareClass, amount(v1alpha1.CapMemory, "70Gi")))
			held.Status.Allocation = &resourceapi.AllocationResult{Devices: resourceapi.DeviceAllocationResult{
				Results: []resourceapi.DeviceRequestAllocationResult{{Driver: v1alpha1.DriverName, Pool: pool, Device: d.Name,
					ShareID: ptr.To(types.UID(name + d.Name)), ConsumedCapacity: d70(d)}}}}
			s.Claims = append(s.Claims, held)
		}
	}
	return s
}

// d70 is what a share of 70 GiB takes of a device.
func d70(d resourceapi.Device) map[resourceapi.QualifiedName]resource.Quantity {
	out := map[resourceapi.QualifiedName]resource.Quantity{}
	for name, capacity := range d.Capacity {
		if out[name] = *resource.NewQuantity(1, resource.DecimalSI); name == v1alpha1.CapMemory {
			out[name] = resource.MustParse("70Gi")
		} else if capacity.Value.IsZero() {
			out[name] = resource.Quantity{}
		}
	}
	return out
}

// What it costs to find out that a pod finds no room in a large cluster.
func BenchmarkFullCluster(b *testing.B) {
	s := full(b)
	wanted := []*resourceapi.ResourceClaim{claim(request("r", shareClass, amount(v1alpha1.CapMemory, "20Gi")))}
	newFinder := func(b *testing.B) *scheduling.Finder {
		f, err := engine.NewFinder(b.Context(), s)
		expect.NoError(b, err)
		return f
	}
	b.Run("new finder", func(b *testing.B) {
		for b.Loop() {
			newFinder(b)
		}
	})
	for name, extent := range map[string]scheduling.Extent{"first": scheduling.FirstRoom, "all": scheduling.EveryNode} {
		b.Run(name, func(b *testing.B) {
			f := newFinder(b)
			for b.Loop() {
				room, err := f.Find(b.Context(), podOn(""), wanted, extent)
				if err != nil || room.Fits() || explain.Nearest(room, 1) == "" {
					b.Fatal(explain.Nearest(room, 1), err)
				}
			}
		})
	}
}
