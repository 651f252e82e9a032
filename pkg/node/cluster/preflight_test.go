// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"errors"
	"strings"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	k8stesting "k8s.io/client-go/testing"
	"k8s.io/dynamic-resource-allocation/resourceslice"
	"k8s.io/klog/v2/ktesting"
	"k8s.io/utils/ptr"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
)

// Every slice of a pool is asked for, and what is dropped of any is told.
func TestPreflightFindsWhatTheAPIServerDrops(t *testing.T) {
	pool := resourceslice.DriverResources{Pools: map[string]resourceslice.Pool{"n1/gpu": {Slices: []resourceslice.Slice{
		{Devices: []resourceapi.Device{{
			Name: "gpu-0", AllowMultipleAllocations: ptr.To(true),
			ConsumesCounters: []resourceapi.DeviceCounterConsumption{{CounterSet: "cards"}},
		}}},
		{SharedCounters: []resourceapi.CounterSet{{Name: "cards"}}},
	}}}}
	for name, tc := range map[string]struct {
		drop func(*resourceapi.ResourceSliceSpec)
		want string
	}{
		"nothing":  {func(*resourceapi.ResourceSliceSpec) {}, ""},
		"counters": {func(s *resourceapi.ResourceSliceSpec) { s.SharedCounters = nil }, "DRAPartitionableDevices"},
		"consumption": {func(s *resourceapi.ResourceSliceSpec) {
			eachDevice(s, func(d *resourceapi.Device) { d.ConsumesCounters = nil })
		}, "DRAPartitionableDevices"},
		"several claims": {func(s *resourceapi.ResourceSliceSpec) {
			eachDevice(s, func(d *resourceapi.Device) { d.AllowMultipleAllocations = nil })
		}, "DRAConsumableCapacity"},
	} {
		t.Run(name, func(t *testing.T) {
			_, ctx := ktesting.NewTestContext(t)
			client := fake.NewClientset()
			client.PrependReactor("create", "resourceslices", func(action k8stesting.Action) (bool, runtime.Object, error) {
				slice := action.(k8stesting.CreateAction).GetObject().(*resourceapi.ResourceSlice).DeepCopy()
				expect.Equal(t, 2, slice.Spec.Pool.ResourceSliceCount, "a slice says that its pool has")
				tc.drop(&slice.Spec)
				return true, slice, nil
			})
			err := Preflight(ctx, client, "n1", pool)
			var missing *MissingFeatureError
			switch {
			case tc.want == "" && err != nil:
				t.Errorf("refused: %v", err)
			case tc.want != "" && (!errors.As(err, &missing) || !strings.Contains(err.Error(), tc.want)):
				t.Errorf("error %v, want one that names %s", err, tc.want)
			}
		})
	}
}

func eachDevice(s *resourceapi.ResourceSliceSpec, change func(*resourceapi.Device)) {
	for i := range s.Devices {
		change(&s.Devices[i])
	}
}

func TestFeaturesOfAPool(t *testing.T) {
	shared := resourceslice.Slice{Devices: []resourceapi.Device{{AllowMultipleAllocations: ptr.To(true)}}}
	counters := resourceslice.Slice{SharedCounters: []resourceapi.CounterSet{{Name: "cards"}}}
	plain := resourceslice.Slice{Devices: []resourceapi.Device{{Name: "gpu-0"}}}
	for _, tc := range []struct {
		slices []resourceslice.Slice
		want   Features
	}{
		{[]resourceslice.Slice{plain}, Features{}},
		{[]resourceslice.Slice{plain, shared}, Features{Shares: true}},
		{[]resourceslice.Slice{plain, counters}, Features{Counters: true}},
		{[]resourceslice.Slice{shared, counters}, Features{Shares: true, Counters: true}},
	} {
		if got := FeaturesOf(
			resourceslice.DriverResources{Pools: map[string]resourceslice.Pool{"p": {Slices: tc.slices}}}); got != tc.want {
			t.Errorf("%+v, want %+v", got, tc.want)
		}
	}
}
