// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/dynamic-resource-allocation/structured"
	"k8s.io/klog/v2/ktesting"

	"github.com/gpushare/dra-driver-gpushare/deviceclasses"
	"github.com/gpushare/dra-driver-gpushare/internal/expect"
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
	expect.NoError(t, err)
	classes, err := deviceclasses.All()
	expect.NoError(t, err)
	for _, m := range modes() {
		slices, err := nodes.Slices(has[0], b.machines[0], m)
		expect.NoError(t, err)
		allocator, err := structured.NewAllocator(ctx, stockallocator.Features(), stockallocator.Nothing(),
			stockallocator.Classes(classes), slices, stockallocator.Expressions(10))
		expect.NoError(t, err)
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

// A burst that finds the scheduler's memory untouched is not measured.
func TestWarmUp(t *testing.T) {
	failed := errors.New("failed")
	for name, test := range map[string]struct {
		memory []float64
		// bursts are the results of those that are made, and err is the error that ends them.
		bursts []float64
		err    error
	}{
		"warm":                {memory: []float64{1700, 1701}, bursts: []float64{30}},
		"grows twice":         {memory: []float64{400, 750, 1100, 1105}, bursts: []float64{10, 20, 30}},
		"shrinks":             {memory: []float64{1700, 1200}, bursts: []float64{30}},
		"a burst fails":       {memory: []float64{400}, err: failed},
		"the process is gone": {memory: nil, err: failed},
	} {
		t.Run(name, func(t *testing.T) {
			next := func(values *[]float64) (float64, error) {
				if len(*values) == 0 {
					return 0, failed
				}
				value := (*values)[0]
				*values = (*values)[1:]
				return value, nil
			}
			want := 0.0
			if len(test.bursts) > 0 {
				want = test.bursts[len(test.bursts)-1]
			}
			got, err := warmUp(func() (float64, error) { return next(&test.memory) },
				func() (float64, error) { return next(&test.bursts) })
			expect.ErrorIs(t, err, test.err)
			expect.Equal(t, want, got, "pods a second of the last burst")
			expect.Equal(t, 0, len(test.memory)+len(test.bursts), "measurements that were not made")
		})
	}
}
