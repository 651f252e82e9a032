// SPDX-License-Identifier: Apache-2.0

package main

import (
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/dynamic-resource-allocation/structured"
	"k8s.io/klog/v2/ktesting"

	"github.com/gpushare/dra-driver-gpushare/deviceclasses"
	"github.com/gpushare/dra-driver-gpushare/internal/stockallocator"
	"github.com/gpushare/dra-driver-gpushare/internal/testneeds"
	"github.com/gpushare/dra-driver-gpushare/tests/bench/internal/nodes"
	"github.com/gpushare/dra-driver-gpushare/tests/harness"
)

// The benchmark's figures hold only if a claim fits on each free node.
func TestClaimsFit(t *testing.T) {
	testneeds.DeviceNodes(t)
	_, ctx := ktesting.NewTestContext(t)
	b := &bench{}
	has, err := b.simulate(ctx, "../../../demo/machines/dgx1.yaml", 1)
	if err != nil {
		t.Fatal(err)
	}
	classes, err := deviceclasses.All()
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range modes() {
		slices, err := nodes.Slices(has[0], b.machines[0], m)
		if err != nil {
			t.Fatalf("mode %s: %v", m, err)
		}
		allocator, err := structured.NewAllocator(ctx, stockallocator.Features(), stockallocator.Nothing(),
			stockallocator.Classes(classes), slices, stockallocator.Expressions(10))
		if err != nil {
			t.Fatalf("mode %s: %v", m, err)
		}
		request := requestIn(m)
		if request.Exactly != nil { // the API server's defaults
			request.Exactly.AllocationMode, request.Exactly.Count = resourceapi.DeviceAllocationModeExactCount, 1
		}
		claim := &resourceapi.ResourceClaim{Spec: harness.Requests(request)}
		if fits, err := allocator.Allocate(ctx, has[0], []*resourceapi.ResourceClaim{claim}); fits == nil {
			t.Errorf("mode %s: the claim does not fit: %v", m, err)
		}
	}
}
