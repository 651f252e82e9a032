// SPDX-License-Identifier: Apache-2.0

package devices_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gpushare/dra-driver-gpushare/pkg/devices"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
)

func TestOrders(t *testing.T) {
	half, full := devices.Load{Units: 8}, devices.Load{Units: 15, Full: true}
	for name, test := range map[string]struct {
		loads              map[string]devices.Load
		spread, inUseFirst []int
	}{
		"free":       {nil, []int{0, 1, 2}, []int{0, 1, 2}},
		"one in use": {map[string]devices.Load{"GPU-1": half}, []int{0, 2, 1}, []int{1, 0, 2}},
		"two in use": {map[string]devices.Load{"GPU-1": half, "GPU-2": {Units: 4}}, []int{0, 2, 1}, []int{1, 2, 0}},
		"one full":   {map[string]devices.Load{"GPU-0": full, "GPU-2": half}, []int{1, 2, 0}, []int{2, 1, 0}},
		"one free and closed": {map[string]devices.Load{"GPU-0": {Full: true}, "GPU-2": half}, []int{1, 2, 0},
			[]int{2, 1, 0}},
		"all full": {map[string]devices.Load{"GPU-0": full, "GPU-1": full, "GPU-2": {Full: true}}, []int{2, 0, 1},
			[]int{0, 1, 2}},
	} {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(test.spread, devices.SpreadOrder(plainCards(3), test.loads)); diff != "" {
				t.Errorf("spread (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(test.inUseFirst, devices.InUseFirst(plainCards(3), test.loads)); diff != "" {
				t.Errorf("held first (-want +got):\n%s", diff)
			}
		})
	}
}

// Of cards of several sizes, that comes first of which the smallest part is granted.
func TestSpreadComparesPartsOfCards(t *testing.T) {
	m := &gpu.Machine{GPUs: []gpu.GPU{{Index: 0, UUID: "small", MemoryMiB: 16 << 10},
		{Index: 1, UUID: "large", MemoryMiB: 80 << 10}}}
	got := devices.SpreadOrder(m, map[string]devices.Load{"small": {Units: 4}, "large": {Units: 16}})
	if diff := cmp.Diff([]int{1, 0}, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
