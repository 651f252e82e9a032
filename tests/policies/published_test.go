// SPDX-License-Identifier: Apache-2.0

package admission

import (
	"fmt"
	"path/filepath"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/dynamic-resource-allocation/resourceslice"
	"k8s.io/utils/ptr"

	"github.com/gpushare/dra-driver-gpushare/internal/topologytest"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/devices"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
	"github.com/gpushare/dra-driver-gpushare/pkg/mode"
)

// The policy on slices takes what the plugin publishes, in every mode.
func TestPublishedSlicesAreTaken(t *testing.T) {
	s := newServer(t)
	machine := &gpu.Machine{}
	for i := range 4 {
		machine.GPUs = append(machine.GPUs, gpu.GPU{Index: i, UUID: fmt.Sprintf("GPU-%d", i), Model: "Tesla-V100-SXM2-16GB",
			MemoryMiB: 16130})
	}
	for i := range 2 {
		machine.Links = append(machine.Links, gpu.Link{A: 2 * i, B: 2*i + 1, Kind: gpu.LinkNVLink, GBps: 50})
	}
	in := func(m mode.Mode) devices.Options {
		return devices.Options{Pool: v1alpha1.PoolName("n1"), Mode: m, Slots: 20, Isolation: "none", IsolationLevel: "none"}
	}
	published := map[string]resourceslice.DriverResources{"nothing": devices.Empty(v1alpha1.PoolName("n1"))}
	var perMode []devices.Options
	for _, m := range mode.Dynamic.ServedModes() {
		published[string(m)] = devices.Build(machine, in(m))
		perMode = append(perMode, in(m))
	}
	published["dynamic"] = devices.BuildDynamic(machine, perMode)
	linked := in(mode.Topology)
	linked.Retained = [][]int{{0, 1, 2}}
	published["topology"] = devices.Build(machine, linked)
	cut := *machine
	cut.Partitioned = []gpu.Partitioned{{GPU: gpu.GPU{Index: 4, UUID: "GPU-4", Model: "NVIDIA-A100-SXM4-80GB"},
		Instances: []gpu.Instance{{UUID: "MIG-0", Profile: "1g.10gb", Size: 1, MemoryMiB: 9728}}}}
	instances := in(mode.Exclusive)
	instances.MIG = devices.MIGOptions{Isolation: "mig", Level: "kernel", Gone: []devices.GoneInstance{{Index: 4,
		Instance: gpu.Instance{UUID: "MIG-1", Profile: "2g.20gb", Start: 2, Size: 2, MemoryMiB: 19968}}}}
	published["mig"] = devices.Build(&cut, instances)
	// More GPUs than any machine has, each cut on demand: 25 places, as an A100 has.
	onDemand := &gpu.Machine{}
	for i := range 64 {
		p := gpu.Partitioned{GPU: gpu.GPU{Index: i, UUID: fmt.Sprintf("GPU-%d", i), Model: "NVIDIA-A100-SXM4-80GB"},
			Profiles: []gpu.Profile{{Kind: gpu.Instance{Profile: "1g.10gb+me", Size: 1, MemoryMiB: 9728}, Count: 7}}}
		for start := range 25 {
			p.Profiles[0].Starts = append(p.Profiles[0].Starts, start)
		}
		onDemand.Partitioned = append(onDemand.Partitioned, p)
	}
	instances.MIG.Gone = nil
	published["on-demand"] = devices.Build(onDemand, instances)
	taken(t, s, published)
	if n := len(published["on-demand"].Pools[v1alpha1.PoolName("n1")].Slices); n != 33 {
		t.Errorf("64 GPUs that are cut on demand have %d slices", n)
	}
	if n := len(published["topology"].Pools[v1alpha1.PoolName("n1")].Slices[0].Devices); n <= len(machine.GPUs)+1 {
		t.Errorf("mode topology has %d devices: no sets, of which this is to tell", n)
	}
}

// taken checks that a node's plugin may write the slices.
func taken(t *testing.T, s *server, published map[string]resourceslice.DriverResources) {
	t.Helper()
	for name, resources := range published {
		for pool, content := range resources.Pools {
			for i, part := range content.Slices {
				slice := &resourceapi.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("%05x-gpu.aliyun.com-n1", i)},
					Spec: resourceapi.ResourceSliceSpec{
						Driver: v1alpha1.DriverName, NodeName: ptr.To("n1"), Devices: part.Devices, SharedCounters: part.SharedCounters,
						Pool: resourceapi.ResourcePool{Name: pool, Generation: 1, ResourceSliceCount: int64(len(content.Slices))},
					}}
				err := s.validate(account("other", "gpu-kubelet-plugin", "n1"), slice, nil)
				if err != nil {
					t.Errorf("%s, slice %d: %v", name, i, err)
				}
			}
		}
	}
}

// Nor does it refuse the GPUs of any machine file in any mode, nor one of which no more can be read than has to be.
func TestSlicesOfEachMachineAreTaken(t *testing.T) {
	s := newServer(t)
	files, err := filepath.Glob("testdata/demo/machines/*.yaml")
	if err != nil || len(files) < 5 {
		t.Fatalf("machine files %q: %v", files, err)
	}
	machines := map[string]*gpu.Machine{"little known": {GPUs: []gpu.GPU{{UUID: "GPU-0", Model: "GPU", HostMemory: true}}}}
	for _, file := range files {
		if machines[file], err = topologytest.Machine(t.Context(), file); err != nil {
			t.Fatal(err)
		}
	}
	for name, m := range machines {
		published := map[string]resourceslice.DriverResources{}
		for _, served := range append(mode.Dynamic.ServedModes(), mode.Exclusive, mode.Topology) {
			made := map[string]map[string]bool{}
			for _, p := range m.Partitioned {
				made[p.UUID] = map[string]bool{}
				for _, profile := range p.Profiles {
					for _, start := range profile.Starts {
						made[p.UUID][devices.InstanceName(p.Index, profile.Kind.Profile, start)] = true
					}
				}
			}
			for _, onDemand := range []bool{false, true} {
				o := devices.Options{Pool: v1alpha1.PoolName("n1"), Mode: served, Slots: 20, Isolation: "none",
					IsolationLevel: "none", MIG: devices.MIGOptions{Isolation: "mig", Level: "kernel"}}
				if onDemand {
					o.MIG.Made = made
				}
				published[fmt.Sprintf("%s, %s, %t", name, served, onDemand)] = devices.Build(m, o)
			}
		}
		taken(t, s, published)
	}
}
