// SPDX-License-Identifier: Apache-2.0

package devices_test

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/dynamic-resource-allocation/resourceslice"
	"k8s.io/utils/ptr"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/devices"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
	"github.com/gpushare/dra-driver-gpushare/pkg/mode"
)

// full is a machine of which everything is known, whose devices have all attributes that there are.
func full() *gpu.Machine {
	m := migMachine()
	m.GPUs = []gpu.GPU{cutA100(0).GPU, cutA100(2).GPU}
	m.Links = []gpu.Link{{A: 0, B: 2, Kind: gpu.LinkNVLink, GBps: 600}, {A: 1, B: 2, Kind: gpu.LinkNVLink, GBps: 600}}
	return m
}

// named are the names of a device in the domain of NVIDIA's driver.
func named(d resourceapi.Device) (attributes, capacities []string) {
	of := func(names []resourceapi.QualifiedName) (own []string) {
		slices.Sort(names)
		for _, name := range names {
			if n, is := strings.CutPrefix(string(name), "gpu.nvidia.com/"); is {
				own = append(own, n)
			}
		}
		return own
	}
	return of(slices.Collect(maps.Keys(d.Attributes))), of(slices.Collect(maps.Keys(d.Capacity)))
}

// The names are those by which claims for NVIDIA's driver select. No device has more than the API allows, whatever else
// it says.
func TestNamesOfNVIDIAsDriver(t *testing.T) {
	shares := "architecture cudaComputeCapability driverVersion productName uuid"
	want := map[string]string{
		"gpu-0":      "architecture brand cudaComputeCapability cudaDriverVersion driverVersion index productName type uuid",
		"gpu-0-cgpu": shares, "gpu-0-mps": shares, "gpu-1-mig-3g-40gb-0": "parentUUID profile",
		"gpu-0-share": "", "gpu-0-core-mem": "", "gpu-0-monitor": "",
	}
	var all []devices.Options
	for _, served := range mode.Dynamic.ServedModes() {
		o := migOptions(served)
		o.NVIDIA, o.Isolation, o.IsolationLevel = true, "mps", "driver"
		o.Limits = map[string]gpu.Amount{"GPU-0": {Units: 8, Shares: 1}}
		if served.Shared() {
			o.MemoryLimits = map[string]string{"GPU-0": "dmem"}
		}
		all = append(all, o)
	}
	got := map[string]string{}
	for _, slice := range devices.BuildDynamic(full(), all).Pools["p"].Slices {
		for _, d := range slice.Devices {
			if n := len(d.Attributes) + len(d.Capacity); n > resourceapi.ResourceSliceMaxAttributesAndCapacitiesPerDevice {
				t.Errorf("device %s has %d attributes and capacities", d.Name, n)
			}
			if _, asked := want[d.Name]; !asked {
				continue
			}
			attributes, capacities := named(d)
			got[d.Name] = strings.Join(attributes, " ")
			if memory := strings.Join(capacities, " "); (memory == "memory") != (got[d.Name] != "") {
				t.Errorf("device %s has the capacities %q", d.Name, memory)
			}
			policy := d.Capacity["gpu.nvidia.com/memory"].RequestPolicy
			if shared := ptr.Deref(d.AllowMultipleAllocations, false) && got[d.Name] != ""; shared != (policy != nil) ||
				shared && !policy.Default.IsZero() {
				t.Errorf("device %s: a claim takes %v of NVIDIA's memory, want nothing of a shared device", d.Name, policy)
			}
		}
	}
	expect.Equal(t, want, got, "attributes")
}

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

// What is held back to spread shares can be told from what pods without a claim hold.
func TestWhatIsHeldBackIsNotReserved(t *testing.T) {
	held := map[string]gpu.Amount{"GPU-0": {Units: 4, Shares: 1}, "GPU-1": {Units: 99, Shares: 99}}
	o := devices.Options{Pool: "p", Mode: mode.Share, Slots: 20, Room: map[string]gpu.Amount{
		"GPU-1": {Units: 11, Cores: 100, Shares: 19}}, Limits: held}
	built := devices.Build(plainGPUs(2), o).Pools["p"].Slices[0].Devices
	var got [][4]int64
	for i := range built {
		d := &built[i]
		memory, slots := d.Capacity[v1alpha1.CapMemory].Value, devices.Unlimited(d)[v1alpha1.CapSlots].Value
		units, _, closed := devices.Reserved(d)
		if closed {
			t.Errorf("%s is closed", d.Name)
		}
		all := devices.Unlimited(d)[v1alpha1.CapMemory].Value
		got = append(got, [4]int64{memory.Value() >> 30, all.Value() >> 30, slots.Value(), units})
	}
	expect.Equal(t, [][4]int64{{4, 15, 20, 0}, {11, 11, 19, 4}}, got, "GiB offered, GiB and shares at all, GiB reserved")
	whole := devices.Build(plainGPUs(1), devices.Options{Pool: "p", Mode: mode.Exclusive}).Pools["p"].Slices[0].Devices[0]
	expect.Equal(t, whole.Capacity, devices.Unlimited(&whole), "of a whole GPU")
}
