// SPDX-License-Identifier: Apache-2.0

package devices_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/utils/ptr"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/pkg/devices"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
	"github.com/gpushare/dra-driver-gpushare/pkg/mode"
)

// cutA100 is an A100 in MIG mode with these instances, as nvidia-smi tells of it (facts/mig.md §1).
func cutA100(index int, instances ...gpu.Instance) gpu.Partitioned {
	return gpu.Partitioned{
		GPU: gpu.GPU{Index: index, UUID: fmt.Sprintf("GPU-%d", index), Minor: index, Model: "NVIDIA-A100-SXM4-80GB",
			ProductName: "NVIDIA A100-SXM4-80GB", Brand: "Nvidia", Architecture: "Ampere", ComputeCapability: "8.0",
			MemoryMiB: 81920, PCIBusID: "0000:3b:00.0", PCIeRoot: "pci0000:3a", NUMANode: ptr.To(1)},
		Instances: instances,
	}
}

var (
	small = gpu.Instance{InstanceID: gpu.InstanceID{GI: 13}, UUID: "MIG-small", ProfileID: 20, Profile: "1g.10gb+me",
		Start: 6, Size: 1, MemoryMiB: 9728, SMCount: 14, CopyEngines: 1, Decoders: 1, JPEGs: 1, OFAs: 1}
	half = gpu.Instance{InstanceID: gpu.InstanceID{GI: 2}, UUID: "MIG-half", ProfileID: 9, Profile: "3g.40gb",
		Start: 0, Size: 4, MemoryMiB: 40192, SMCount: 42, CopyEngines: 3, Decoders: 2}
	bare = gpu.Instance{InstanceID: gpu.InstanceID{GI: 5, CI: gpu.NoCI}, Profile: "2g.20gb", Start: 4, Size: 2,
		LeftOut: "it has no compute instance"}
)

func migMachine() *gpu.Machine {
	return &gpu.Machine{DriverVersion: "570.124.06", CUDADriverVersion: "12.8",
		GPUs:        []gpu.GPU{{Index: 0, UUID: "GPU-0", Model: "NVIDIA-A100-SXM4-80GB", MemoryMiB: 81920}},
		Partitioned: []gpu.Partitioned{cutA100(1, half, bare, small)}}
}

func migOptions(m mode.Mode) devices.Options {
	return devices.Options{Pool: "p", Mode: m, Slots: 20, MIG: devices.MIGOptions{Isolation: "mig", Level: "kernel"}}
}

func allOf(pool []resourceapi.Device) []string {
	var names []string
	for _, d := range pool {
		names = append(names, d.Name)
	}
	return names
}

func built(m *gpu.Machine, o devices.Options) []resourceapi.Device {
	var out []resourceapi.Device
	for _, s := range devices.Build(m, o).Pools["p"].Slices {
		out = append(out, s.Devices...)
	}
	return out
}

// Whatever becomes of the node's other GPUs, instances are offered, each of them once, after them.
func TestInstancesAreOfferedInEveryMode(t *testing.T) {
	instances := []string{"gpu-1-mig-3g-40gb-0", "gpu-1-mig-1g-10gb-me-6"}
	for m, whole := range map[mode.Mode]string{mode.Exclusive: "gpu-0", mode.Share: "gpu-0-share",
		mode.CGPU: "gpu-0-cgpu", mode.CoreMem: "gpu-0-core-mem", mode.MPS: "gpu-0-mps", mode.Topology: "gpu-0-topology"} {
		expect.Equal(t, append([]string{whole}, instances...), allOf(built(migMachine(), migOptions(m))), "mode %s", m)
	}
	var perMode []devices.Options
	for _, m := range mode.Dynamic.ServedModes() {
		perMode = append(perMode, migOptions(m))
	}
	var dynamic []string
	for _, s := range devices.BuildDynamic(migMachine(), perMode).Pools["p"].Slices {
		for _, d := range s.Devices {
			dynamic = append(dynamic, d.Name)
			if strings.Contains(d.Name, "mig") && len(d.ConsumesCounters) > 0 {
				t.Errorf("device %s takes counters of a GPU that is not offered otherwise", d.Name)
			}
		}
	}
	expect.Equal(t, append(instances, "gpu-0-monitor"), dynamic[5:], "dynamic")
}

func TestWhatAnInstanceShows(t *testing.T) {
	d := built(migMachine(), migOptions(mode.Share))[2]
	if ptr.Deref(d.AllowMultipleAllocations, false) || len(d.Taints) > 0 {
		t.Errorf("it can be shared, or is closed: %+v", d)
	}
	got := map[string]string{}
	for name, a := range d.Attributes {
		switch {
		case a.StringValue != nil:
			got[string(name)] = *a.StringValue
		case a.IntValue != nil:
			got[string(name)] = fmt.Sprint(*a.IntValue)
		case a.VersionValue != nil:
			got[string(name)] = *a.VersionValue
		}
	}
	want := map[string]string{
		"mode": "mig", "isolation": "mig", "isolationLevel": "kernel",
		"profile": "1g.10gb+me", "profileID": "20", "uuid": "MIG-small", "parentUUID": "GPU-1",
		"placementStart": "6", "placementSize": "1", "memoryMiB": "9728",
		"index": "1", "minor": "1", "model": "NVIDIA-A100-SXM4-80GB", "productName": "NVIDIA A100-SXM4-80GB",
		"brand": "Nvidia", "architecture": "Ampere", "cudaComputeCapability": "8.0.0", "driverVersion": "570.124.6",
		"cudaDriverVersion": "12.8.0", "resource.kubernetes.io/pciBusID": "0000:3b:00.0",
		"resource.kubernetes.io/pcieRoot": "pci0000:3a", "resource.kubernetes.io/numaNode": "1", "nvlinkGBps": "0",
	}
	expect.Equal(t, want, got, "attributes")
	amounts := map[string]int64{}
	for name, c := range d.Capacity {
		amounts[string(name)] = c.Value.Value()
	}
	expect.Equal(t, map[string]int64{"memory": 9728 << 20, "multiprocessors": 14, "copyEngines": 1, "decoders": 1,
		"encoders": 0, "jpegEngines": 1, "ofaEngines": 1}, amounts, "capacity")
}

// A selector that names an attribute which a device lacks is an error, and stops the claim on all nodes.
func TestInstancesHaveWhatWholeGPUsHave(t *testing.T) {
	all := built(migMachine(), migOptions(mode.Exclusive))
	for name := range all[0].Attributes {
		if _, has := all[2].Attributes[name]; !has && name != "isolation" {
			t.Errorf("a whole GPU has the attribute %s, an instance has not", name)
		}
	}
}

// Switching the node's mode is of no concern to instances; what ails their GPU is.
func TestTaintsOfInstances(t *testing.T) {
	o := migOptions(mode.Exclusive)
	taint := func(key string) []resourceapi.DeviceTaint {
		return []resourceapi.DeviceTaint{{Key: key, Effect: resourceapi.DeviceTaintEffectNoSchedule}}
	}
	o.Taints = taint("switching")
	o.GPUTaints = map[string][]resourceapi.DeviceTaint{"GPU-1": taint("sick"), "MIG-half": taint("half")}
	got := map[string][]string{}
	for _, d := range built(migMachine(), o) {
		for _, t := range d.Taints {
			got[d.Name] = append(got[d.Name], t.Key)
		}
	}
	want := map[string][]string{"gpu-0": {"switching"}, "gpu-1-mig-3g-40gb-0": {"sick", "half"},
		"gpu-1-mig-1g-10gb-me-6": {"sick"}}
	expect.Equal(t, want, got, "taints")
}

// A GPU that is not well says no more of an instance that is not there.
func TestInstancesThatAreGoneFromAnUnhealthyGPU(t *testing.T) {
	o, m := migOptions(mode.Exclusive), migMachine()
	taint := func(value string) resourceapi.DeviceTaint {
		return resourceapi.DeviceTaint{Key: "unhealthy", Value: value, Effect: resourceapi.DeviceTaintEffectNoSchedule}
	}
	beside := resourceapi.DeviceTaint{Key: "other", Effect: resourceapi.DeviceTaintEffectNoSchedule}
	o.GPUTaints = map[string][]resourceapi.DeviceTaint{m.Partitioned[0].UUID: {taint("xid-79"), beside}}
	o.MIG.Gone = []devices.GoneInstance{{Instance: gpu.Instance{Profile: "2g.20gb", Start: 4, Size: 2}, Index: 1,
		Taint: taint("mig-instance-gone")}}
	for _, d := range built(m, o) {
		want := []resourceapi.DeviceTaint{taint("xid-79"), beside}
		if d.Name == "gpu-1-mig-2g-20gb-4" {
			want = []resourceapi.DeviceTaint{beside, taint("mig-instance-gone")}
		}
		if strings.Contains(d.Name, "-mig-") {
			expect.Equal(t, want, d.Taints, "taints of %s", d.Name)
		}
	}
}

// What a claim holds that is not there any more stays, closed, and as complete as others.
func TestInstancesThatAreGoneStayWhileHeld(t *testing.T) {
	o := migOptions(mode.Exclusive)
	o.MIG.Gone = []devices.GoneInstance{
		{Instance: gpu.Instance{Profile: "2g.20gb", Start: 4, Size: 2, UUID: "MIG-old"}, Index: 1,
			Taint: resourceapi.DeviceTaint{Key: "gone",
				Effect: resourceapi.DeviceTaintEffectNoExecute}},
		// Published already, as another one in the same place.
		{Instance: half, Index: 1, Taint: resourceapi.DeviceTaint{Key: "replaced",
			Effect: resourceapi.DeviceTaintEffectNoSchedule}},
		// Of a GPU that is gone.
		{Instance: half, Index: 7},
	}
	all := built(migMachine(), o)
	expect.Equal(t, []string{"gpu-0", "gpu-1-mig-3g-40gb-0", "gpu-1-mig-1g-10gb-me-6", "gpu-1-mig-2g-20gb-4"},
		allOf(all), "devices")
	if len(all[1].Taints) != 1 || all[1].Taints[0].Key != "replaced" || len(all[3].Taints) != 1 ||
		all[3].Taints[0].Key != "gone" {
		t.Errorf("taints %v, %v", all[1].Taints, all[3].Taints)
	}
	for name := range all[2].Attributes {
		if _, has := all[3].Attributes[name]; !has {
			t.Errorf("it lacks the attribute %s", name)
		}
	}
	for name := range all[2].Capacity {
		if _, has := all[3].Capacity[name]; !has {
			t.Errorf("it lacks the capacity %s", name)
		}
	}
}

func TestNamesOfInstances(t *testing.T) {
	for profile, want := range map[string]string{
		"1g.10gb": "gpu-2-mig-1g-10gb-3", "1g.10gb+me": "gpu-2-mig-1g-10gb-me-3",
		"2g.48gb+me.all": "gpu-2-mig-2g-48gb-me-all-3",
		// Another one than 1g.24gb+me, in the same places.
		"1g.24gb-me": "gpu-2-mig-1g-24gb-no-me-3", "1g.24gb+gfx": "gpu-2-mig-1g-24gb-gfx-3",
	} {
		name := devices.InstanceName(2, profile, 3)
		if name != want || len(validation.IsDNS1123Label(name)) > 0 {
			t.Errorf("profile %s: %s, want %s", profile, name, want)
		}
		indices, m, err := devices.ParseDeviceName(name)
		if err != nil || m != mode.MIG || !slices.Equal(indices, []int{2}) {
			t.Errorf("%s: %v, %s, %v", name, indices, m, err)
		}
	}
	for _, name := range []string{"gpu-2-mig", "gpu-2-mig-3", "gpu-2-mig--3", "gpu-2-mig-1g-10gb", "gpu-x-mig-1g-10gb-3",
		"gpu-02-mig-1g-10gb-3", "gpu-2-mig-1G-10gb-3", "gpu-2-mig-1g-10gb-03",
		"gpu-2-mig-1g-10gb--3", "gpu-2-mig-1g-10gb-3-"} {
		if indices, m, err := devices.ParseDeviceName(name); err == nil {
			t.Errorf("%s is understood: %v, %s", name, indices, m)
		}
	}
}
