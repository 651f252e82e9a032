// SPDX-License-Identifier: Apache-2.0

package devices

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	resourceapi "k8s.io/api/resource/v1"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
	"github.com/gpushare/dra-driver-gpushare/pkg/mode"
)

func v100() *gpu.Machine {
	numa := 0
	m := &gpu.Machine{DriverVersion: "570.124.06", CUDADriverVersion: "12.8"}
	for i, bus := range []string{"0000:00:08.0", "0000:00:09.0"} {
		m.GPUs = append(m.GPUs, gpu.GPU{
			Index: i, UUID: "GPU-" + bus, Minor: 1 - i, Model: "Tesla-V100-SXM2-16GB", ProductName: "Tesla V100-SXM2-16GB",
			Brand: "Tesla", Architecture: "Volta", ComputeCapability: "7.0", MemoryMiB: 16130, SMCount: 80,
			PCIBusID: bus, PCIeRoot: "pci0000:00", NUMANode: &numa,
		})
	}
	m.Links = []gpu.Link{{A: 0, B: 1, Kind: gpu.LinkNVLink, Lanes: 2, Generation: 2, GBps: 50}}
	return m
}

func devicesOf(t *testing.T, m *gpu.Machine, o Options) []resourceapi.Device {
	t.Helper()
	pools := Build(m, o).Pools
	p, ok := pools[o.Pool]
	if !ok || len(pools) != 1 || len(p.Slices) != 1 {
		t.Fatalf("want one pool %q with one slice, got %+v", o.Pool, pools)
	}
	return p.Slices[0].Devices
}

func TestBuildExclusive(t *testing.T) {
	d := devicesOf(t, v100(), Options{Pool: "n1/gpu", Mode: mode.Exclusive, Isolation: "whole-card"})[1]
	if d.Name != "gpu-1" || d.AllowMultipleAllocations != nil {
		t.Errorf("device %s, shareable %v: want gpu-1, not shareable", d.Name, d.AllowMultipleAllocations)
	}
	want := map[string]string{
		"uuid": "GPU-0000:00:09.0", "index": "1", "minor": "0", "model": "Tesla-V100-SXM2-16GB",
		"productName": "Tesla V100-SXM2-16GB",
		"brand":       "Tesla", "architecture": "Volta", "cudaComputeCapability": "v7.0.0", "driverVersion": "v570.124.6",
		"cudaDriverVersion": "v12.8.0",
		"mode":              "exclusive", "isolation": "whole-card", "memoryMiB": "16130", "nvlinkPeers": "0",
		"nvlinkGBps":                      "50",
		"resource.kubernetes.io/pciBusID": "0000:00:09.0", "resource.kubernetes.io/pcieRoot": "pci0000:00",
		"resource.kubernetes.io/numaNode": "0",
	}
	expect.Equal(t, want, attributeStrings(t, d), "attributes")
	if got := capacityStrings(d); got["memory"] != "16130Mi" || got["cores"] != "100" || len(got) != 2 {
		t.Errorf("capacity %v", got)
	}
}

func TestBuildShare(t *testing.T) {
	d := devicesOf(t, v100(), Options{Pool: "n1/gpu", Mode: mode.Share, Slots: 20, Isolation: "none"})[0]
	if d.Name != "gpu-0-share" || d.AllowMultipleAllocations == nil || !*d.AllowMultipleAllocations {
		t.Errorf("device %s, shareable %v: want gpu-0-share, shareable", d.Name, d.AllowMultipleAllocations)
	}
	want := map[string]string{"memory": "15Gi default 1Gi min 0 step 1Gi", "cores": "100 default 0 min 0 step 5 max 0",
		"slots": "20 default 1 min 0 step 1 max 1"}
	expect.Equal(t, want, capacityStrings(d), "capacity")
}

func TestBuildWithLessRoom(t *testing.T) {
	for name, tc := range map[string]struct {
		mode mode.Mode
		room gpu.Amount
		want map[string]string
	}{
		"some left": {mode.Share, gpu.Amount{Units: 4, Cores: 100, Shares: 18}, map[string]string{
			"memory": "4Gi default 1Gi min 0 step 1Gi", "cores": "100 default 0 min 0 step 5 max 0",
			"slots": "18 default 1 min 0 step 1 max 1",
		}},
		"compute, in steps": {mode.CoreMem, gpu.Amount{Units: 4, Cores: 33, Shares: 18}, map[string]string{
			"memory": "4Gi default 0 min 0 step 1Gi", "cores": "30 default 0 min 0 step 5",
			"slots": "18 default 1 min 0 step 1 max 1",
		}},
		// A step of more than there is the API server refuses.
		"nothing left": {mode.CoreMem, gpu.Amount{Cores: 4}, map[string]string{"memory": "0", "cores": "0", "slots": "0"}},
	} {
		m := v100()
		devices := devicesOf(t, m, Options{Pool: "n1/gpu", Mode: tc.mode, Slots: 20, Room: map[string]gpu.Amount{
			m.GPUs[1].UUID: tc.room}})
		expect.Equal(t, tc.want, capacityStrings(devices[1]), "%s", name)
		if got := devices[1].Attributes[v1alpha1.AttrMemoryMiB].IntValue; got == nil || *got != 16130 {
			t.Errorf("%s: memoryMiB %v, want that of the GPU", name, got)
		}
		if got := capacityStrings(devices[0])["memory"]; !strings.HasPrefix(got, "15Gi") {
			t.Errorf("%s: the other GPU has %s", name, got)
		}
	}
}

func TestBuildKeepsWithinTheAPILimits(t *testing.T) {
	m := v100()
	m.GPUs[0].ProductName = strings.Repeat("N", 80)
	m.GPUs[0].Model = "N" + strings.Repeat("卡", 30)
	m.GPUs[1].Brand = "half of a character: \xe5\x8d"
	for _, md := range []mode.Mode{mode.Exclusive, mode.Share} {
		for _, d := range devicesOf(t, m, Options{Pool: "p/gpu", Mode: md, Slots: 20, Isolation: "none"}) {
			if n := len(d.Attributes) + len(d.Capacity); n > resourceapi.ResourceSliceMaxAttributesAndCapacitiesPerDevice {
				t.Errorf("%s has %d attributes and capacities", d.Name, n)
			}
			for name, a := range d.Attributes {
				if a.StringValue != nil && (len(*a.StringValue) > resourceapi.DeviceAttributeMaxValueLength ||
					*a.StringValue == "") {
					t.Errorf("%s: %s has %d characters", d.Name, name, len(*a.StringValue))
				}
				if a.StringValue != nil && !utf8.ValidString(*a.StringValue) {
					t.Errorf("%s: %s is %q", d.Name, name, *a.StringValue)
				}
			}
		}
	}
}

func TestBuildIsDeterministic(t *testing.T) {
	o := Options{Pool: "n1/gpu", Mode: mode.Share, Slots: 20, Isolation: "none"}
	first := mustJSON(t, Build(v100(), o))
	for range 20 {
		expect.Equal(t, first, mustJSON(t, Build(v100(), o)), "bytes for the same machine and mode")
	}
}

func TestUnknownPropertiesAreLeftOut(t *testing.T) {
	m := &gpu.Machine{DriverVersion: "unknown", GPUs: []gpu.GPU{{Index: 0, UUID: "GPU-a", Model: "M", ProductName: "M",
		MemoryMiB: 1024, PCIBusID: "0000:00:08.0"}}}
	got := attributeStrings(t, devicesOf(t, m, Options{Pool: "p/gpu", Mode: mode.Exclusive})[0])
	for _, name := range []string{"brand", "architecture", "cudaComputeCapability", "driverVersion", "nvlinkPeers",
		"resource.kubernetes.io/pcieRoot", "resource.kubernetes.io/numaNode"} {
		if v, ok := got[name]; ok {
			t.Errorf("%s is published as %q although it is not known", name, v)
		}
	}
	expect.Equal(t, "0", got["nvlinkGBps"], "nvlinkGBps")
}

func TestDeviceNames(t *testing.T) {
	for _, m := range append(mode.Dynamic.ServedModes(), mode.Topology, mode.Monitor) {
		indices, got, err := ParseDeviceName(DeviceName(12, m))
		if err != nil || !slices.Equal(indices, []int{12}) || got != m {
			t.Errorf("%s: parsed as %d %s, %v", DeviceName(12, m), indices, got, err)
		}
	}
	set := []int{0, 3, 12}
	if indices, m, err := ParseDeviceName(SetName(set)); err != nil || !slices.Equal(indices, set) || m != mode.Topology {
		t.Errorf("%s: parsed as %d %s, %v", SetName(set), indices, m, err)
	}
	for _, name := range []string{
		"", "gpu-", "gpu-x", "gpu-01", "gpu--1", "gpu-1-", "gpu-1-exclusive", "gpu-1-dynamic", "card-1", "gpu-1-bogus",
		"gpus", "gpus-", "gpus-1", "gpus-1-0", "gpus-1-1", "gpus-0-01", "gpus-0--1", "gpus-0-x", "gpus-0-1-topology",
	} {
		if indices, m, err := ParseDeviceName(name); err == nil {
			t.Errorf("%q was accepted as %d %s", name, indices, m)
		}
	}
}

func attributeStrings(t *testing.T, d resourceapi.Device) map[string]string {
	t.Helper()
	out := map[string]string{}
	for name, a := range d.Attributes {
		switch {
		case a.StringValue != nil:
			out[string(name)] = *a.StringValue
		case a.VersionValue != nil:
			out[string(name)] = "v" + *a.VersionValue
		case a.IntValue != nil:
			out[string(name)] = mustJSON(t, *a.IntValue)
		}
	}
	return out
}

func capacityStrings(d resourceapi.Device) map[string]string {
	out := map[string]string{}
	for name, c := range d.Capacity {
		s := c.Value.String()
		if p := c.RequestPolicy; p != nil {
			s += " default " + p.Default.String() + " min " + p.ValidRange.Min.String() + " step " + p.ValidRange.Step.String()
			if p.ValidRange.Max != nil {
				s += " max " + p.ValidRange.Max.String()
			}
		}
		out[string(name)] = s
	}
	return out
}

func mustJSON(t *testing.T, v any) string {
	t.Helper()
	b, err := json.Marshal(v)
	expect.NoError(t, err)
	return string(b)
}

// What a GPU uses of the host's memory cannot be limited, and the smallest share is 1 GiB.
func TestGPUsThatAreNotShared(t *testing.T) {
	for name, change := range map[string]func(*gpu.GPU){
		"memory of the host":     func(g *gpu.GPU) { g.HostMemory = true },
		"a vGPU of 512 MiB":      func(g *gpu.GPU) { g.MemoryMiB = 512 },
		"a GPU that tells 0 MiB": func(g *gpu.GPU) { g.MemoryMiB = 0 },
	} {
		t.Run(name, func(t *testing.T) {
			m := v100()
			change(&m.GPUs[0])
			checkFirstIsWhole(t, m)
		})
	}
}

// checkFirstIsWhole checks that the first of two GPUs is offered in the modes for whole GPUs alone.
func checkFirstIsWhole(t *testing.T, m *gpu.Machine) {
	t.Helper()
	for _, md := range []mode.Mode{mode.Exclusive, mode.Topology, mode.Share, mode.CGPU, mode.CoreMem, mode.MPS} {
		want := 2
		if md.Shared() {
			want = 1
		}
		var gpus int
		for _, slice := range Build(m, Options{Pool: "n1/gpu", Mode: md, Slots: 20}).Pools["n1/gpu"].Slices {
			for _, d := range slice.Devices {
				if indices, _, err := ParseDeviceName(d.Name); err == nil && len(indices) == 1 {
					gpus++
				}
			}
		}
		expect.Equal(t, want, gpus, "mode %s: GPUs are offered", md)
	}
	var names []string
	for _, slice := range BuildDynamic(m, []Options{{Pool: "n1/gpu", Mode: mode.Exclusive}, {Pool: "n1/gpu",
		Mode: mode.Share, Slots: 20}}).Pools["n1/gpu"].Slices {
		for _, d := range slice.Devices {
			names = append(names, d.Name)
		}
	}
	expect.Equal(t, []string{"gpu-0", "gpu-1", "gpu-1-share", "gpu-0-monitor", "gpu-1-monitor"}, names,
		"offered on a dynamic node")
}

// sameType is a machine of the type of v100 with GPUs of its own.
func sameType(node string) *gpu.Machine {
	m := v100()
	for i := range m.GPUs {
		m.GPUs[i].UUID = fmt.Sprintf("GPU-%s-%d", node, i)
	}
	return m
}

// The cluster autoscaler makes the slices of a node that does not exist yet from those of
// another one of its group: nodes of one type have to offer the same, but for what tells
// their GPUs apart.
func TestNodesOfATypeOfferTheSame(t *testing.T) {
	modes := []mode.Mode{mode.Exclusive, mode.Topology, mode.Share, mode.MPS, mode.CGPU, mode.CoreMem}
	for _, m := range modes {
		var offered [][]resourceapi.Device
		for _, node := range []string{"n1", "n2"} {
			o := Options{Pool: v1alpha1.PoolName(node), Mode: m, Slots: 20, Isolation: "any", IsolationLevel: "none"}
			devices := devicesOf(t, sameType(node), o)
			for _, d := range devices {
				delete(d.Attributes, v1alpha1.AttrUUID)
			}
			offered = append(offered, devices)
		}
		expect.Equal(t, offered[0], offered[1], "mode %s: two nodes of a type offer", m)
	}
}

// The autoscaler takes a node whose drivers have not published as many complete pools as
// others of its group for one that is not ready; a pool without devices is complete.
func TestAPoolWithoutDevicesIsComplete(t *testing.T) {
	pools := Empty("n1/gpu").Pools
	if pool, ok := pools["n1/gpu"]; !ok || len(pools) != 1 || len(pool.Slices) != 1 || len(pool.Slices[0].Devices) != 0 {
		t.Errorf("got %+v, want the pool with one slice without devices", pools)
	}
}
