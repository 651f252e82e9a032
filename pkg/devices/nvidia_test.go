// SPDX-License-Identifier: Apache-2.0

package devices_test

import (
	"maps"
	"slices"
	"strings"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/utils/ptr"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
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
