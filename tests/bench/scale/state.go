// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"

	"github.com/google/uuid"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/dynamic-resource-allocation/structured"
	"k8s.io/utils/ptr"

	"github.com/gpushare/dra-driver-gpushare/internal/stockallocator"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/devices"
	"github.com/gpushare/dra-driver-gpushare/pkg/mode"
)

// scenario is what is allocated in the cluster when the allocator is asked.
type scenario struct {
	name string
	// inMode reports whether it makes sense in the contestant's mode.
	inMode func(contestant) bool
	state  func(published [][]*resourceapi.ResourceSlice) structured.AllocatedState
	// asks says what is asked for.
	asks asks
}

// asks is what a claim asks for.
type asks int

const (
	anyGPU             asks = iota
	noGPUByRequest          // a model that no node has, with a selector in the request
	noGPUByDeviceClass      // the same, with one in the DeviceClass
)

// scenarios are those that are measured; shares is how many of 1Gi there are
// where there are many.
func scenarios(shares int) []scenario {
	all := func(contestant) bool { return true }
	// To the allocator the capped modes are what share is.
	some := func(c contestant) bool { return c.scheduled }
	shared := func(c contestant) bool { return c.scheduled && c.mode.Shared() }
	none := func([][]*resourceapi.ResourceSlice) structured.AllocatedState { return stockallocator.Nothing() }
	here := func(published [][]*resourceapi.ResourceSlice) structured.AllocatedState {
		return sharesHere(published, shares)
	}
	elsewhere := func([][]*resourceapi.ResourceSlice) structured.AllocatedState { return sharesElsewhere(shares) }
	return []scenario{
		{name: "nodes free", inMode: all, state: none},
		{name: "half of the GPUs taken", inMode: some, state: halfTaken},
		{name: fmt.Sprintf("%d shares on these nodes", shares), inMode: shared, state: here},
		{name: fmt.Sprintf("%d shares on other nodes", shares), inMode: some, state: elsewhere},
		{name: "no GPU of the model: selector in the request", inMode: some, state: none, asks: noGPUByRequest},
		{name: "no GPU of the model: in the DeviceClass", inMode: some, state: none, asks: noGPUByDeviceClass},
	}
}

// halfTaken is that nothing is left of the first half of each node's GPUs.
func halfTaken(published [][]*resourceapi.ResourceSlice) structured.AllocatedState {
	state := stockallocator.Nothing()
	for _, ofNode := range published {
		// The first device of a GPU is the GPU alone.
		alone := map[int64]resourceapi.Device{}
		for _, slice := range ofNode {
			for _, device := range slice.Spec.Devices {
				if index := device.Attributes[v1alpha1.AttrIndex].IntValue; index != nil {
					if _, ok := alone[*index]; !ok {
						alone[*index] = device
					}
				}
			}
		}
		for index := range int64(len(alone) / 2) {
			device := alone[index]
			id := structured.MakeDeviceID(v1alpha1.DriverName, ofNode[0].Spec.Pool.Name, device.Name)
			if !ptr.Deref(device.AllowMultipleAllocations, false) {
				state.AllocatedDevices.Insert(id)
				continue
			}
			consumed := map[resourceapi.QualifiedName]resource.Quantity{}
			for name, capacity := range device.Capacity {
				consumed[name] = capacity.Value
			}
			addShare(state, id, consumed)
		}
	}
	return state
}

// sharesHere is that shares are spread evenly over the nodes, on the first GPU
// of each.
func sharesHere(published [][]*resourceapi.ResourceSlice, count int) structured.AllocatedState {
	state := stockallocator.Nothing()
	for i := range count {
		slice := published[i%len(published)][0]
		addShare(state, structured.MakeDeviceID(v1alpha1.DriverName, slice.Spec.Pool.Name, slice.Spec.Devices[0].Name),
			oneGi())
	}
	return state
}

// sharesElsewhere is that shares are on nodes that are not asked about, ten on a
// GPU.
func sharesElsewhere(count int) structured.AllocatedState {
	state := stockallocator.Nothing()
	const perGPU, perNode = 10, 80
	for i := range count {
		pool := v1alpha1.PoolName(fmt.Sprintf("other-%04d", i/perNode))
		addShare(state, structured.MakeDeviceID(v1alpha1.DriverName, pool, devices.DeviceName(i%perNode/perGPU, mode.Share)),
			oneGi())
	}
	return state
}

func oneGi() map[resourceapi.QualifiedName]resource.Quantity {
	return map[resourceapi.QualifiedName]resource.Quantity{
		v1alpha1.CapMemory: resource.MustParse("1Gi"), v1alpha1.CapCores: resource.MustParse("0"),
		v1alpha1.CapSlots: resource.MustParse("1"),
	}
}

func addShare(state structured.AllocatedState, id structured.DeviceID,
	consumed map[resourceapi.QualifiedName]resource.Quantity) {
	state.AllocatedSharedDeviceIDs.Insert(structured.MakeSharedDeviceID(id, ptr.To(types.UID(uuid.NewString()))))
	state.AggregatedCapacity.Insert(structured.NewDeviceConsumedCapacity(id, consumed))
}
