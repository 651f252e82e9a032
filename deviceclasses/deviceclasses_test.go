// SPDX-License-Identifier: Apache-2.0

package deviceclasses

import (
	"context"
	"fmt"
	"strings"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/dynamic-resource-allocation/cel"
	"k8s.io/utils/ptr"

	"github.com/gpushare/dra-driver-gpushare/internal/allocatortest"
	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/ack"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/devices"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
	"github.com/gpushare/dra-driver-gpushare/pkg/mode"
)

// builtDevice is a device as the driver publishes it in a mode.
func builtDevice(t *testing.T, m mode.Mode) resourceapi.Device {
	t.Helper()
	return builtGPU(t, m, "NVIDIA-A10")
}

func builtGPU(t *testing.T, m mode.Mode, model string) resourceapi.Device {
	t.Helper()
	machine := &gpu.Machine{GPUs: []gpu.GPU{{UUID: "GPU-a", Model: model, MemoryMiB: 23028}}}
	pools := devices.Build(machine, devices.Options{Pool: "n/gpu", Mode: m, Slots: 20, Isolation: "none"}).Pools
	return pools["n/gpu"].Slices[0].Devices[0]
}

func matches(t *testing.T, class *resourceapi.DeviceClass, driver string, d resourceapi.Device) bool {
	t.Helper()
	return compiled(t, class)(driver, d)
}

// compiled says of devices whether a class selects them.
func compiled(t *testing.T, class *resourceapi.DeviceClass) func(driver string, d resourceapi.Device) bool {
	t.Helper()
	var selectors []cel.CompilationResult
	for _, selector := range class.Spec.Selectors {
		result := cel.GetCompiler(cel.Features{EnableConsumableCapacity: true}).CompileCELExpression(selector.CEL.Expression,
			cel.Options{})
		if result.Error != nil {
			t.Fatalf("%s does not compile: %v", class.Name, result.Error)
		}
		selectors = append(selectors, result)
	}
	return func(driver string, d resourceapi.Device) bool {
		t.Helper()
		for _, selector := range selectors {
			ok, _, err := selector.DeviceMatches(context.Background(), cel.Device{
				Driver: driver, AllowMultipleAllocations: d.AllowMultipleAllocations, Attributes: d.Attributes,
				Capacity: d.Capacity,
			})
			expect.NoErrorf(t, err, "%s cannot be evaluated", class.Name)
			if !ok {
				return false
			}
		}
		return true
	}
}

func TestModeClassesSelectTheirModeAndNoOther(t *testing.T) {
	classes, err := Modes()
	expect.NoError(t, err)
	var names []string
	for _, class := range classes {
		names = append(names, class.Name)
		for _, m := range []mode.Mode{mode.Exclusive, mode.Share, mode.CGPU, mode.CoreMem, mode.MPS, mode.Topology} {
			want := class.Name == string(m)+".gpu.aliyun.com"
			expect.Equal(t, want, matches(t, class, "gpu.aliyun.com", builtDevice(t, m)),
				"class %s selects a device in mode %s", class.Name, m)
			if matches(t, class, "gpu.nvidia.com", builtDevice(t, m)) {
				t.Errorf("class %s selects a device of another driver", class.Name)
			}
		}
		// Other drivers' devices have none of our attributes; looking at them
		// must not be an error, which would stop the whole allocation.
		if matches(t, class, "nic.example.com", resourceapi.Device{Name: "eth0"}) {
			t.Errorf("class %s selects a network GPU", class.Name)
		}
	}
	expect.Equal(t, []string{"cgpu.gpu.aliyun.com", "core-mem.gpu.aliyun.com", "exclusive.gpu.aliyun.com",
		"mps.gpu.aliyun.com", "share.gpu.aliyun.com", "topology.gpu.aliyun.com"}, names, "classes")
}

// The classes of a number of GPUs select devices of so many, on nodes in mode
// topology, and nothing else.
func TestCountClassesSelectTheirNumberOfGPUs(t *testing.T) {
	classes, err := Counts()
	expect.NoError(t, err)
	var names []string
	for _, class := range classes {
		names = append(names, class.Name)
		for count := range int64(9) {
			d := builtDevice(t, mode.Topology)
			d.Attributes["gpuCount"] = resourceapi.DeviceAttribute{IntValue: &count}
			want := class.Name == fmt.Sprintf("linked-%d.topology.gpu.aliyun.com", count) || count == 1 &&
				class.Name == "single.topology.gpu.aliyun.com"
			expect.Equal(t, want, matches(t, class, "gpu.aliyun.com", d),
				"class %s selects a device of %d GPUs", class.Name, count)
		}
		for _, other := range []mode.Mode{mode.Exclusive, mode.Share} {
			if matches(t, class, "gpu.aliyun.com", builtDevice(t, other)) {
				t.Errorf("class %s selects a device in mode %s", class.Name, other)
			}
		}
		if matches(t, class, "nic.example.com", resourceapi.Device{Name: "eth0"}) {
			t.Errorf("class %s selects a network GPU", class.Name)
		}
	}
	want := []string{"linked-2.topology.gpu.aliyun.com", "linked-4.topology.gpu.aliyun.com",
		"linked-8.topology.gpu.aliyun.com", "single.topology.gpu.aliyun.com"}
	expect.Equal(t, want, names, "classes")
}

// Queues evaluate device.allowMultipleAllocations as false: what classes select does not depend on it. That no share is
// stored as a whole GPU, the policy on slices holds (tests/policies).
func TestClassesSelectWhereTheFieldIsNotSeen(t *testing.T) {
	classes, err := With([]string{"NVIDIA-A10"})
	expect.NoError(t, err)
	for _, class := range classes {
		selects := compiled(t, class)
		for _, m := range []mode.Mode{mode.Exclusive, mode.Share, mode.CGPU, mode.CoreMem, mode.MPS, mode.Topology} {
			d := builtDevice(t, m)
			want := selects("gpu.aliyun.com", d)
			d.AllowMultipleAllocations = nil
			expect.Equal(t, want, selects("gpu.aliyun.com", d), "class %s selects a %s device without the field", class.Name, m)
		}
	}
}

func TestExclusiveClassServesTheExtendedResource(t *testing.T) {
	classes, err := Modes()
	expect.NoError(t, err)
	for _, class := range classes {
		want := ""
		if class.Name == "exclusive.gpu.aliyun.com" {
			want = "nvidia.com/gpu"
		}
		expect.Equal(t, want, ptr.Deref(class.Spec.ExtendedResourceName, ""),
			"class %s serves the extended resource", class.Name)
	}
}

// Kubernetes charges a claim for the extended resource of its classes, too: by that a quota as on ACK counts.
func TestQuotaClassesStandForResourcesOfACK(t *testing.T) {
	classes, err := All()
	expect.NoError(t, err)
	got := map[string]string{}
	for _, class := range classes {
		if strings.Contains(class.Name, ".quota.") {
			got[class.Name] = ptr.Deref(class.Spec.ExtendedResourceName, "")
		}
	}
	expect.Equal(t, map[string]string{"gib.quota.gpu.aliyun.com": ack.ResourceMemory,
		"percent.quota.gpu.aliyun.com": ack.ResourceCores}, got, "resources")
}

// What pods ask for by aliyun.com/gpu-mem alone, ACK places on nodes of these modes
// and no others.
func TestMemoryClassSelectsModesThatGrantMemoryAlone(t *testing.T) {
	classes, err := Legacy()
	expect.NoError(t, err)
	if len(classes) != 1 || classes[0].Name != "memory.gpu.aliyun.com" {
		t.Fatalf("classes %v", classes)
	}
	selects := compiled(t, classes[0])
	for m, want := range map[mode.Mode]bool{
		mode.Share: true, mode.CGPU: true, mode.MPS: true, mode.CoreMem: false, mode.Exclusive: false, mode.Topology: false,
	} {
		expect.Equal(t, want, selects("gpu.aliyun.com", builtDevice(t, m)), "it selects a device in mode %s", m)
	}
	if selects("nic.example.com", resourceapi.Device{Name: "eth0"}) {
		t.Error("it selects another driver's device")
	}
}

// A whole GPU of the class gpu.aliyun.com is one that a mode hands out whole.
func TestAnyWholeGPU(t *testing.T) {
	for m, want := range map[mode.Mode]string{
		mode.Exclusive: "gpu-0", mode.Topology: "gpu-0-topology", mode.Dynamic: "gpu-0",
		mode.Share: "", mode.CGPU: "", mode.MPS: "", mode.CoreMem: "",
	} {
		t.Run(string(m), func(t *testing.T) {
			installed, err := All()
			expect.NoError(t, err)
			_, resources := poolIn(m)
			n := allocatortest.NewNode("n1", v1alpha1.DriverName, resources, installed)
			expect.Equal(t, want, n.Devices(t, asking("gpu.aliyun.com", nil)), "allocated")
		})
	}
}
