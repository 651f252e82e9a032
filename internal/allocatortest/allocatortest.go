// SPDX-License-Identifier: Apache-2.0

// Package allocatortest lets tests and benchmarks allocate claims from built slices with the
// allocator that the scheduler uses (k8s.io/dynamic-resource-allocation/structured).
package allocatortest

import (
	"context"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/dynamic-resource-allocation/resourceslice"
	"k8s.io/dynamic-resource-allocation/structured"

	"github.com/gpushare/dra-driver-gpushare/internal/stockallocator"
)

// Node is one node with its published pool and what is allocated from it.
type Node struct {
	name   string
	driver string
	slices []*resourceapi.ResourceSlice
	// beside are the slices of other drivers.
	beside  []*resourceapi.ResourceSlice
	classes Classes
	state   structured.AllocatedState
	steps   int64
}

// compiled are the CEL expressions of earlier allocations, on whatever node: as in the scheduler, one
// cache serves all.
var compiled = stockallocator.Expressions(1000)

// NewNode returns a node that publishes the resources, with these classes
// known to the scheduler.
func NewNode(name, driver string, resources resourceslice.DriverResources,
	deviceClasses []*resourceapi.DeviceClass) *Node {
	n := &Node{
		name: name, driver: driver, classes: deviceClasses, state: stockallocator.Nothing(),
	}
	n.Publish(resources)
	return n
}

// Publish replaces what the node publishes. What is allocated stays so.
func (n *Node) Publish(resources resourceslice.DriverResources) {
	n.slices = n.slicesOf(n.driver, resources)
}

// PublishBeside has another driver publish on the node.
func (n *Node) PublishBeside(driver string, resources resourceslice.DriverResources) {
	n.beside = n.slicesOf(driver, resources)
}

func (n *Node) slicesOf(driver string, resources resourceslice.DriverResources) []*resourceapi.ResourceSlice {
	var out []*resourceapi.ResourceSlice
	for poolName, pool := range resources.Pools {
		for i, slice := range pool.Slices {
			out = append(out, &resourceapi.ResourceSlice{
				ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("%05x-%s-%s", i, driver, n.name)},
				Spec: resourceapi.ResourceSliceSpec{
					Driver: driver, NodeName: &n.name, Devices: slice.Devices, SharedCounters: slice.SharedCounters,
					Pool: resourceapi.ResourcePool{Name: poolName, Generation: 1, ResourceSliceCount: int64(len(pool.Slices))},
				},
			})
		}
	}
	return out
}

// Allocate allocates the requests as one claim and remembers the result; nil
// means that they do not fit.
func (n *Node) Allocate(ctx context.Context, spec resourceapi.DeviceClaim) ([]resourceapi.DeviceRequestAllocationResult,
	error) {
	allocator, err := structured.NewAllocator(ctx, stockallocator.Features(), n.state, n.classes,
		slices.Concat(n.slices, n.beside), compiled)
	if err != nil {
		return nil, err
	}
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: n.name, Labels: map[string]string{
		"kubernetes.io/hostname": n.name}}}
	claim := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "test", Name: "claim"},
		Spec: resourceapi.ResourceClaimSpec{Devices: spec}}
	allocations, err := allocator.Allocate(ctx, node, []*resourceapi.ResourceClaim{claim})
	// The allocator says what it did only to those who know it by more than its interface.
	if stats := reflect.ValueOf(allocator).MethodByName("GetStats"); stats.IsValid() {
		n.steps = stats.Call(nil)[0].FieldByName("NumAllocateOneInvocations").Int()
	}
	if err != nil || allocations == nil {
		return nil, err
	}
	results := allocations[0].Devices.Results
	n.Hold(results)
	return results, nil
}

// Steps is in how many steps the last claim was allocated, or found not to fit.
func (n *Node) Steps() int64 { return n.steps }

// Devices allocates a claim and returns the names of its devices with spaces between them;
// "" if it does not fit.
func (n *Node) Devices(t testing.TB, claim resourceapi.DeviceClaim) string {
	t.Helper()
	results, err := n.Allocate(t.Context(), claim)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, r := range results {
		names = append(names, r.Device)
	}
	return strings.Join(names, " ")
}

// Hold takes what another claim was allocated.
func (n *Node) Hold(results []resourceapi.DeviceRequestAllocationResult) {
	stockallocator.Hold(&n.state, results)
}

// Release gives back what Allocate returned.
func (n *Node) Release(results []resourceapi.DeviceRequestAllocationResult) {
	for _, r := range results {
		if r.AdminAccess != nil && *r.AdminAccess {
			continue
		}
		id := structured.MakeDeviceID(r.Driver, r.Pool, r.Device)
		if r.ShareID == nil {
			n.state.AllocatedDevices.Delete(id)
			continue
		}
		n.state.AllocatedSharedDeviceIDs.Delete(structured.MakeSharedDeviceID(id, r.ShareID))
		n.state.AggregatedCapacity.Remove(structured.NewDeviceConsumedCapacity(id, r.ConsumedCapacity))
	}
}

// Classes are the DeviceClasses as the allocator asks for them.
type Classes = stockallocator.Classes
