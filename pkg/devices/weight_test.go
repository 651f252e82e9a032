// SPDX-License-Identifier: Apache-2.0

package devices_test

import (
	"encoding/json"
	"testing"

	"k8s.io/dynamic-resource-allocation/resourceslice"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/devices"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
	"github.com/gpushare/dra-driver-gpushare/pkg/mode"
)

// The API server, the scheduler and controllers keep the slices of all nodes in memory. What a node's weigh there is,
// for the most part, the maps of its devices' attributes: Go doubles a map with its 15th entry, and again with its
// 29th.
func TestWeightOfANode(t *testing.T) {
	for name, test := range map[string]struct {
		pool resourceslice.DriverResources
		// bytes is the most that the slices may have in JSON.
		bytes int
	}{
		"whole GPUs":    {build(machine(t, "dgx1"), mode.Exclusive), 6_500},
		"shares":        {build(machine(t, "dgx1"), mode.Share), 8_500},
		"linked sets":   {topologyPool(machine(t, "dgx1")), 46_500},
		"dynamic":       {dynamicPool(machine(t, "dgx1"), nil), 47_500},
		"MIG on demand": {devices.Build(onDemand(8), migOptions(mode.Exclusive)), 243_000},
	} {
		t.Run(name, func(t *testing.T) {
			weight := 0
			for poolName, pool := range test.pool.Pools {
				for _, slice := range pool.Slices {
					encoded, err := json.Marshal(devices.SliceSpec("node", poolName, pool, slice))
					expect.NoError(t, err)
					weight += len(encoded)
					for _, d := range slice.Devices {
						most := 28
						if d.Attributes[v1alpha1.AttrMembers].StringValue != nil {
							most = 14
						}
						if len(d.Attributes) > most {
							t.Errorf("device %s has %d attributes, more than %d", d.Name, len(d.Attributes), most)
						}
					}
				}
			}
			if weight > test.bytes {
				t.Errorf("the slices of a node have %d bytes in JSON, more than %d", weight, test.bytes)
			}
		})
	}
}

func build(m *gpu.Machine, in mode.Mode) resourceslice.DriverResources {
	return devices.Build(m, devices.Options{Pool: "p", Mode: in, Slots: 20, Isolation: "whole-card",
		IsolationLevel: "card"})
}
