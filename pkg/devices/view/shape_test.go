// SPDX-License-Identifier: Apache-2.0

package view_test

import (
	"fmt"
	stdslices "slices"
	"testing"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/nvidia"
	"github.com/gpushare/dra-driver-gpushare/pkg/devices/view"
	"github.com/gpushare/dra-driver-gpushare/pkg/mode"
)

func TestSlicesThatOfferTheSameHaveOneShape(t *testing.T) {
	changed := func(change func([]resourceapi.Device)) *view.Slice {
		d := published(mode.Share, 0, a10, a10)
		change(d)
		return view.Read(slice(1, 1, d...))
	}
	first := changed(func([]resourceapi.Device) {})
	for name, test := range map[string]struct {
		change func([]resourceapi.Device)
		same   bool
	}{
		"other GPUs": {func(d []resourceapi.Device) {
			d[0].Attributes[v1alpha1.AttrUUID] = resourceapi.DeviceAttribute{StringValue: ptr.To("GPU-x")}
		}, true},
		"another order": {func(d []resourceapi.Device) { stdslices.Reverse(d) }, true},
		"another model": {func(d []resourceapi.Device) {
			d[0].Attributes[v1alpha1.AttrModel] = resourceapi.DeviceAttribute{StringValue: ptr.To("NVIDIA-A30")}
		}, false},
		"a taint": {func(d []resourceapi.Device) { d[1].Taints = []resourceapi.DeviceTaint{{Key: "k"}} }, false},
	} {
		t.Run(name, func(t *testing.T) {
			expect.Equal(t, test.same, changed(test.change).Shape == first.Shape, "one shape")
		})
	}
}

// Where claims for NVIDIA's driver are served, devices have their UUID, or that of their GPU, under its name, too.
func TestNodesWithNVIDIAsNamesHaveOneShape(t *testing.T) {
	own, parent := nvidia.Named(v1alpha1.AttrUUID), nvidia.Named(v1alpha1.AttrParentUUID)
	named := func(uuid string) []resourceapi.Device {
		d := published(mode.Exclusive, 0, a10, t4)
		for i, name := range []resourceapi.QualifiedName{own, parent} {
			of := resourceapi.DeviceAttribute{StringValue: ptr.To(fmt.Sprint(uuid, i))}
			d[i].Attributes[v1alpha1.AttrUUID], d[i].Attributes[name] = of, of
			if name == parent {
				d[i].Attributes[v1alpha1.AttrParentUUID] = of
			}
		}
		return d
	}
	first, second := view.Read(slice(1, 1, named("GPU-a")...)), view.Read(slice(1, 1, named("GPU-b")...))
	expect.Equal(t, true, first.Shape == second.Shape, "one shape")
	got, _, err := second.Offer()
	expect.NoError(t, err)
	expect.Equal(t, named("GPU-b"), got, "offered")
	pool, err := view.NewPools(false).ForAllocator("n", []*view.Slice{second})
	expect.NoError(t, err)
	a := pool[0].Spec.Devices[0].Attributes
	if uuid := ptr.Deref(a[v1alpha1.AttrUUID].StringValue, ""); uuid == "" || uuid != ptr.Deref(a[own].StringValue, "") {
		t.Errorf("the allocator sees UUID %q, and %q under NVIDIA's name", uuid, ptr.Deref(a[own].StringValue, ""))
	}
}

// The API server writes into each taint when it was added, which differs from node to node.
func TestNodesWhoseTaintsAreOfDifferentTimesHaveOneShape(t *testing.T) {
	added := func(at time.Time) []resourceapi.Device {
		d := published(mode.Share, 0, a10)
		d[0].Taints = []resourceapi.DeviceTaint{{Key: "k", TimeAdded: &metav1.Time{Time: at}}}
		return d
	}
	early, late := added(time.Unix(1, 0)), added(time.Unix(2, 0))
	same := view.Read(slice(1, 1, early...)).Shape == view.Read(slice(1, 1, late...)).Shape
	expect.Equal(t, true, same, "one shape")
	if got := early[0].Taints[0].TimeAdded; got == nil || got.Unix() != 1 {
		t.Errorf("the slice that was read says now that its taint was added at %v", got)
	}
}

func TestShapeAndUUIDsAreTheSlice(t *testing.T) {
	want := published(mode.Share, 0, a10, t4)
	kept := view.Read(slice(1, 1, want...))
	got, counters, err := kept.Shape.Offer()
	if err != nil || len(counters) > 0 {
		t.Fatalf("counters %v, %v", counters, err)
	}
	for i := range got {
		got[i].Attributes[v1alpha1.AttrUUID] = resourceapi.DeviceAttribute{StringValue: &kept.UUIDs[i]}
	}
	if !equality.Semantic.DeepEqual(want, got) {
		t.Errorf("devices %v", expect.Diff(want, got))
	}
	if _, _, err := (view.Shape{}).Offer(); err == nil {
		t.Error("a slice that was not encoded offers something")
	}
}
