// SPDX-License-Identifier: Apache-2.0

// Package stockallocator is how the scheduler of an unchanged Kubernetes uses its
// allocator of devices (k8s.io/dynamic-resource-allocation/structured).
package stockallocator

import (
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/dynamic-resource-allocation/structured"
)

// Features are those that are on by default in Kubernetes 1.37; with them, more is
// possible than before.
func Features() structured.Features {
	return structured.Features{
		AdminAccess: true, ConsumableCapacity: true, DeviceBindingAndStatus: true, DeviceTaints: true,
		PartitionableDevices: true, PrioritizedList: true,
	}
}

// Nothing is what is allocated where nothing is; allocations can be entered.
func Nothing() structured.AllocatedState {
	return structured.AllocatedState{
		AllocatedDevices:         sets.New[structured.DeviceID](),
		AllocatedSharedDeviceIDs: sets.New[structured.SharedDeviceID](),
		AggregatedCapacity:       structured.NewConsumedCapacityCollection(),
	}
}
