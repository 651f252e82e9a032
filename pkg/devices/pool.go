// SPDX-License-Identifier: Apache-2.0

package devices

import (
	"fmt"
	"slices"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/dynamic-resource-allocation/resourceslice"
	"k8s.io/utils/ptr"

	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
)

// devicesPerSlice is how many devices go into one slice. It is the API's limit
// for slices with taints or counters. Any device may come to have a taint, and
// that must not move it to another slice.
const devicesPerSlice = resourceapi.ResourceSliceMaxDevicesWithAdvancedFeatures

// countersPerSet is how many GPUs are counted in one counter set.
const countersPerSet = resourceapi.ResourceSliceMaxCountersPerCounterSet

// pool distributes the devices over as many slices as it takes, in their order,
// in which the scheduler goes through them. Counters, if there are any, come
// last, in slices without devices, as the API wants it.
func pool(name string, devices []resourceapi.Device, counters []resourceapi.CounterSet) resourceslice.DriverResources {
	var out []resourceslice.Slice
	for chunk := range slices.Chunk(devices, devicesPerSlice) {
		out = append(out, resourceslice.Slice{Devices: chunk})
	}
	if len(out) == 0 {
		out = append(out, resourceslice.Slice{})
	}
	for chunk := range slices.Chunk(counters, resourceapi.ResourceSliceMaxCounterSets) {
		out = append(out, resourceslice.Slice{SharedCounters: chunk})
	}
	return resourceslice.DriverResources{Pools: map[string]resourceslice.Pool{name: {Slices: out}}}
}

// SliceSpec is a slice of a node's pool as it is written first.
func SliceSpec(node, name string, pool resourceslice.Pool, slice resourceslice.Slice) resourceapi.ResourceSliceSpec {
	return resourceapi.ResourceSliceSpec{
		Driver: v1alpha1.DriverName, NodeName: &node, Devices: slice.Devices, SharedCounters: slice.SharedCounters,
		Pool: resourceapi.ResourcePool{Name: name, Generation: 1, ResourceSliceCount: int64(len(pool.Slices))},
	}
}

// gpuCounters are the counters of the GPUs with these indices: one of value 1
// for each GPU, which a device takes with wholeGPUs. There is one set for the
// GPUs 0 to 31, and another one for each further 32.
func gpuCounters(indices []int) []resourceapi.CounterSet {
	var sets []resourceapi.CounterSet
	for _, index := range indices {
		name := counterSetName(index)
		i := slices.IndexFunc(sets, func(s resourceapi.CounterSet) bool { return s.Name == name })
		if i < 0 {
			i = len(sets)
			sets = append(sets, resourceapi.CounterSet{Name: name, Counters: map[string]resourceapi.Counter{}})
		}
		sets[i].Counters[counterName(index)] = oneGPU()
	}
	return sets
}

// wholeGPUs is what a device consumes that stands for these GPUs: while it is
// allocated, no other device of any of them can be. The API allows a device the
// counters of two sets.
func wholeGPUs(indices ...int) []resourceapi.DeviceCounterConsumption {
	sets := gpuCounters(indices)
	consumed := make([]resourceapi.DeviceCounterConsumption, 0, len(sets))
	for _, set := range sets {
		consumed = append(consumed, resourceapi.DeviceCounterConsumption{CounterSet: set.Name, Counters: set.Counters})
	}
	return consumed
}

func counterSetName(index int) string {
	if index < countersPerSet {
		return "cards"
	}
	return fmt.Sprintf("cards-%d", index/countersPerSet)
}

func counterName(index int) string { return fmt.Sprintf("gpu-%d", index) }

func oneGPU() resourceapi.Counter {
	return resourceapi.Counter{Value: *resource.NewQuantity(1, resource.DecimalSI)}
}

// Newest returns those slices of one pool that are of its newest generation: the scheduler uses no
// others. pool is what a slice says of it.
func Newest[S any](published []S, pool func(S) resourceapi.ResourcePool) []S {
	var newest []S
	for _, slice := range published {
		switch generation := pool(slice).Generation; {
		case len(newest) == 0 || generation > pool(newest[0]).Generation:
			newest = []S{slice}
		case generation == pool(newest[0]).Generation:
			newest = append(newest, slice)
		}
	}
	return newest
}

// Surplus is by node how many slices of the driver there are beyond what its newest pool says, below zero how many are
// missing; of nodes where they are as many, nothing. of is what a slice says.
func Surplus[S any](published []S, of func(S) (node string, pool resourceapi.ResourcePool)) map[string]int64 {
	byNode := map[string][]S{}
	for _, slice := range published {
		node, _ := of(slice)
		byNode[node] = append(byNode[node], slice)
	}
	surplus := map[string]int64{}
	for node, slices := range byNode {
		newest := Newest(slices, func(s S) resourceapi.ResourcePool { _, pool := of(s); return pool })
		if _, pool := of(newest[0]); int64(len(slices)) != pool.ResourceSliceCount {
			surplus[node] = int64(len(slices)) - pool.ResourceSliceCount
		}
	}
	return surplus
}

// Pools are the slices of the driver's pool of each node that publishes one, in its newest generation.
func Pools(published []*resourceapi.ResourceSlice) map[string][]*resourceapi.ResourceSlice {
	pools := map[string][]*resourceapi.ResourceSlice{}
	for _, slice := range published {
		node := ptr.Deref(slice.Spec.NodeName, "")
		if node != "" && slice.Spec.Driver == v1alpha1.DriverName && slice.Spec.Pool.Name == v1alpha1.PoolName(node) {
			pools[node] = append(pools[node], slice)
		}
	}
	for node, slices := range pools {
		pools[node] = Newest(slices, func(s *resourceapi.ResourceSlice) resourceapi.ResourcePool { return s.Spec.Pool })
	}
	return pools
}

// Published are the devices of each node that publishes a pool of the driver, as its newest
// generation has them, which may be none.
func Published(published []*resourceapi.ResourceSlice) map[string][]resourceapi.Device {
	out := map[string][]resourceapi.Device{}
	for node, pool := range Pools(published) {
		out[node] = nil
		for _, slice := range pool {
			out[node] = append(out[node], slice.Spec.Devices...)
		}
	}
	return out
}
