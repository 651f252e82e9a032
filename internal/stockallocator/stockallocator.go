// SPDX-License-Identifier: Apache-2.0

// Package stockallocator is how the scheduler of an unchanged Kubernetes uses its
// allocator of devices (k8s.io/dynamic-resource-allocation/structured).
package stockallocator

import (
	"errors"
	"fmt"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/dynamic-resource-allocation/cel"
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

// Expressions keeps so many compiled CEL expressions of claims and classes, which may use what
// Features has.
func Expressions(most int) *cel.Cache { return cel.NewCache(most, celFeatures()) }

func celFeatures() cel.Features {
	return cel.Features{EnableConsumableCapacity: Features().ConsumableCapacity}
}

// Cost is the most that evaluating an expression for a device can cost, as the API server estimates it
// when a claim is created; 0 where it does not compile.
func Cost(expression string) uint64 {
	compiled := cel.GetCompiler(celFeatures()).CompileCELExpression(expression, cel.Options{})
	if compiled.Error != nil {
		return 0
	}
	return compiled.MaxCost
}

// Nothing is what is allocated where nothing is; allocations can be entered.
func Nothing() structured.AllocatedState {
	return structured.AllocatedState{
		AllocatedDevices:         sets.New[structured.DeviceID](),
		AllocatedSharedDeviceIDs: sets.New[structured.SharedDeviceID](),
		AggregatedCapacity:       structured.NewConsumedCapacityCollection(),
	}
}

// Hold enters what a claim was allocated.
func Hold(state *structured.AllocatedState, results []resourceapi.DeviceRequestAllocationResult) {
	for _, r := range results {
		if r.AdminAccess != nil && *r.AdminAccess {
			continue
		}
		id := structured.MakeDeviceID(r.Driver, r.Pool, r.Device)
		if r.ShareID == nil {
			state.AllocatedDevices.Insert(id)
			continue
		}
		state.AllocatedSharedDeviceIDs.Insert(structured.MakeSharedDeviceID(id, r.ShareID))
		state.AggregatedCapacity.Insert(structured.NewDeviceConsumedCapacity(id, r.ConsumedCapacity))
	}
}

// ErrNoClass is in the error of Get, and so in the allocator's, where a class is missing.
var ErrNoClass = errors.New("does not exist")

// Classes are the DeviceClasses as the allocator asks for them.
type Classes []*resourceapi.DeviceClass

// List returns all of them.
func (c Classes) List() ([]*resourceapi.DeviceClass, error) { return c, nil }

// Get returns the one with the name.
func (c Classes) Get(name string) (*resourceapi.DeviceClass, error) {
	for _, class := range c {
		if class.Name == name {
			return class, nil
		}
	}
	return nil, fmt.Errorf("DeviceClass %s %w", name, ErrNoClass)
}
