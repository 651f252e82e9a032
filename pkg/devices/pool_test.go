// SPDX-License-Identifier: Apache-2.0

package devices

import (
	"fmt"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2/ktesting"

	"github.com/gpushare/dra-driver-gpushare/internal/allocatortest"
	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
)

func named(names ...string) []resourceapi.Device {
	devices := make([]resourceapi.Device, 0, len(names))
	for _, name := range names {
		devices = append(devices, resourceapi.Device{Name: name})
	}
	return devices
}

func TestPoolDistributesDevicesOverSlices(t *testing.T) {
	var names []string
	for i := range 130 {
		names = append(names, fmt.Sprintf("d%d", i))
	}
	for _, tc := range []struct {
		devices  int
		counters []resourceapi.CounterSet
		// want is the number of devices of each slice; -1 is one with counters.
		want []int
	}{
		{0, nil, []int{0}},
		{8, nil, []int{8}},
		{64, nil, []int{64}},
		{8, gpuCounters([]int{0}), []int{8, -1}},
		{130, gpuCounters([]int{0}), []int{64, 64, 2, -1}},
	} {
		var got []int
		var order []string
		for _, s := range pool("p", named(names[:tc.devices]...), tc.counters).Pools["p"].Slices {
			for _, d := range s.Devices {
				order = append(order, d.Name)
			}
			if len(s.SharedCounters) > 0 {
				got = append(got, -1-len(s.Devices))
				continue
			}
			got = append(got, len(s.Devices))
		}
		expect.Equal(t, tc.want, got, "%d devices", tc.devices)
		expect.Equal(t, fmt.Sprint(names[:tc.devices]), fmt.Sprint(order),
			"%d devices come in the order %v", tc.devices, order)
	}
}

func TestCountersKeepWithinTheAPILimits(t *testing.T) {
	var all []int
	for i := range 64 {
		all = append(all, i)
	}
	sets := gpuCounters(all)
	if len(sets) != 2 || len(sets) > resourceapi.ResourceSliceMaxCounterSets {
		t.Errorf("%d counter sets for 64 GPUs", len(sets))
	}
	for _, set := range sets {
		if len(set.Counters) > resourceapi.ResourceSliceMaxCountersPerCounterSet {
			t.Errorf("set %s has %d counters", set.Name, len(set.Counters))
		}
	}
	if n := len(wholeGPUs(31, 32)); n != 2 || n > resourceapi.ResourceSliceMaxDeviceCounterConsumptionsPerDevice {
		t.Errorf("a device of GPUs 31 and 32 consumes from %d sets", n)
	}
}

// Whatever the slices they lie in, devices of one GPU exclude each other and
// others do not.
func TestDevicesOfAGPUExcludeEachOther(t *testing.T) {
	_, ctx := ktesting.NewTestContext(t)
	device := func(name string, gpus ...int) resourceapi.Device {
		return resourceapi.Device{Name: name, ConsumesCounters: wholeGPUs(gpus...)}
	}
	devices := []resourceapi.Device{device("pair", 0, 1)}
	for i := range devicesPerSlice {
		devices = append(devices, device(fmt.Sprintf("first-%d", i), 0))
	}
	devices = append(devices, device("second", 1), device("third", 40))
	n := allocatortest.NewNode("n1", v1alpha1.DriverName, pool("n1/gpu", devices, gpuCounters([]int{0, 1, 40})),
		[]*resourceapi.DeviceClass{{ObjectMeta: metav1.ObjectMeta{Name: "any"}}})
	one := resourceapi.DeviceClaim{Requests: []resourceapi.DeviceRequest{{Name: "r",
		Exactly: &resourceapi.ExactDeviceRequest{
			DeviceClassName: "any", AllocationMode: resourceapi.DeviceAllocationModeExactCount, Count: 1,
		}}}}
	allocate := func(want string) []resourceapi.DeviceRequestAllocationResult {
		t.Helper()
		results, err := n.Allocate(ctx, one)
		expect.NoError(t, err)
		got := ""
		if len(results) > 0 {
			got = results[0].Device
		}
		expect.Equal(t, want, got, "devices")
		return results
	}
	pair := allocate("pair")
	third := allocate("third")
	allocate("")
	n.Release(pair)
	n.Release(third)
	allocate("pair")
	allocate("third")
	n.Release(pair)
	// The order is that of the devices, through all slices.
	n.Publish(pool("n1/gpu", devices[1:], gpuCounters([]int{0, 1, 40})))
	allocate("first-0")
	allocate("second")
}

// What keeps a pool from being whole shows, whichever way.
func TestSurplus(t *testing.T) {
	type slice struct {
		node              string
		generation, count int64
	}
	var published []slice
	add := func(n int, s slice) {
		for range n {
			published = append(published, s)
		}
	}
	add(2, slice{"well", 3, 2})
	add(1, slice{"missing", 1, 64})
	add(80, slice{"more", 1, 4})
	add(1, slice{"older left", 1, 1})
	add(1, slice{"older left", 2, 1})
	got := Surplus(published, func(s slice) (string, resourceapi.ResourcePool) {
		return s.node, resourceapi.ResourcePool{Generation: s.generation, ResourceSliceCount: s.count}
	})
	expect.Equal(t, map[string]int64{"missing": -63, "more": 76, "older left": 1}, got, "surplus")
}
