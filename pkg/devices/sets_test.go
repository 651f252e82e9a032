// SPDX-License-Identifier: Apache-2.0

package devices_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/utils/ptr"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/internal/topologytest"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/devices"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
	"github.com/gpushare/dra-driver-gpushare/pkg/mode"
	"github.com/gpushare/dra-driver-gpushare/tests/standins/sim"
)

// Whatever a single GPU shows, a set shows too, but for what differs between GPUs: a
// selector that asks for more keeps a pod off every node that has sets.
func TestSetsShowWhatTheirGPUsHaveInCommon(t *testing.T) {
	var single, set resourceapi.Device
	for _, d := range topologyPool(machine(t, "dgx1")).Pools["n1/gpu"].Slices[0].Devices {
		switch d.Name {
		case "gpu-0-topology":
			single = d
		case "gpus-0-3":
			set = d
		}
	}
	var lacks []string
	for name := range single.Attributes {
		if _, ok := set.Attributes[name]; !ok {
			lacks = append(lacks, string(name))
		}
	}
	slices.Sort(lacks)
	want := []string{"index", "minor", "monitor", "nvlinkPeers", "resource.kubernetes.io/pciBusID", "uuid"}
	expect.Equal(t, want, lacks, "attributes of a single GPU that a set lacks")
	for _, name := range []resourceapi.QualifiedName{
		v1alpha1.AttrMode, v1alpha1.AttrIsolation, v1alpha1.AttrIsolationLevel, v1alpha1.AttrModel, v1alpha1.AttrProductName,
		v1alpha1.AttrBrand,
		v1alpha1.AttrArchitecture, v1alpha1.AttrComputeCapability, v1alpha1.AttrDriverVersion, v1alpha1.AttrCUDADriverVersion,
		v1alpha1.AttrMemoryMiB,
	} {
		expect.Equal(t, single.Attributes[name], set.Attributes[name], "attribute %s of a set, where a GPU's is wanted", name)
	}
	expect.Equal(t, single.Capacity, set.Capacity, "capacity of a set, where a GPU's is wanted")
}

// A set is of the NUMA node, and of the PCIe root complex, that all its GPUs are of; one of several has none.
func TestSetsShowWhereAllTheirGPUsAre(t *testing.T) {
	m := machine(t, "dgx1")
	for i := range m.GPUs {
		m.GPUs[i].NUMANode, m.GPUs[i].PCIeRoot = ptr.To(i/4), fmt.Sprintf("pci0000:%d0", i/2)
	}
	got := map[string]string{}
	for _, d := range topologyPool(m).Pools["n1/gpu"].Slices[0].Devices {
		of := "none"
		if node := d.Attributes["resource.kubernetes.io/numaNode"].IntValue; node != nil {
			of = fmt.Sprint(*node)
		}
		got[d.Name] = of + " " + ptr.Deref(d.Attributes["resource.kubernetes.io/pcieRoot"].StringValue, "none")
	}
	for name, want := range map[string]string{
		"gpus-0-1": "0 pci0000:00", "gpus-0-3": "0 none", "gpus-4-5-6-7": "1 none", "gpus-0-4": "none none",
		"gpus-0-1-2-3-4-5-6-7": "none none",
	} {
		expect.Equal(t, want, got[name], "%s is of NUMA node and PCIe root", name)
	}
	// Where a GPU's NUMA node is not known, that of its sets is not either.
	m.GPUs[3].NUMANode = nil
	for _, d := range topologyPool(m).Pools["n1/gpu"].Slices[0].Devices {
		if _, has := d.Attributes["resource.kubernetes.io/numaNode"]; has && d.Name == "gpus-0-3" {
			t.Errorf("%s has a NUMA node, and GPU 3 has none", d.Name)
		}
	}
}

// A selector that is right for every GPU finds sets as well, with the real allocator.
func TestSelectorsOfAllDevices(t *testing.T) {
	for _, expression := range []string{
		`device.attributes["gpu.aliyun.com"].isolation == "whole-card"`,
		`device.attributes["gpu.aliyun.com"].isolationLevel == "card"`,
		`device.attributes["gpu.aliyun.com"].productName == "Tesla V100-SXM2-32GB"`,
		`device.attributes["gpu.aliyun.com"].brand == "Tesla"`,
		`device.capacity["gpu.aliyun.com"].cores.compareTo(quantity("100")) == 0`,
	} {
		claim := newGPUs(4)
		for i := range claim.Requests[0].FirstAvailable {
			claim.Requests[0].FirstAvailable[i].Selectors = []resourceapi.DeviceSelector{
				{CEL: &resourceapi.CELDeviceSelector{Expression: expression}}}
		}
		results, err := topologyNode(t, machine(t, "dgx1")).Allocate(quiet(t), claim)
		if got := fmt.Sprint(members(t, results)); err != nil || got != "[0 1 2 3]" {
			t.Errorf("%s: got %s, %v", expression, got, err)
		}
	}
}

// With more GPUs than all sets can be looked at, claims get linked GPUs in each part
// of the machine, also those that take nothing else.
func TestLinkedGPUsOfALargeMachine(t *testing.T) {
	m := &gpu.Machine{}
	for b := range 16 {
		m.GPUs = append(m.GPUs, gpu.GPU{Index: b, Model: "V100", UUID: fmt.Sprintf("GPU-%d", b), MemoryMiB: 16160})
		for a := range b {
			l := gpu.Link{A: a, B: b, Kind: gpu.LinkSystem, GBps: 6}
			if a/8 == b/8 {
				l.Kind, l.GBps = gpu.LinkNVLink, 150
			}
			m.Links = append(m.Links, l)
		}
	}
	busy := []resourceapi.DeviceRequestAllocationResult{}
	for g := range 5 {
		busy = append(busy, resourceapi.DeviceRequestAllocationResult{Driver: v1alpha1.DriverName, Pool: "n1/gpu",
			Device: devices.DeviceName(g, mode.Topology)})
	}
	linkedOnly := func(k int) resourceapi.DeviceClaim {
		claim := newGPUs(k)
		claim.Requests[0].FirstAvailable = claim.Requests[0].FirstAvailable[:1]
		return claim
	}
	for _, k := range []int{2, 4, 8} {
		for what, claim := range map[string]resourceapi.DeviceClaim{"linked or any": newGPUs(k), "linked": linkedOnly(k)} {
			n := topologyNode(t, m)
			n.Hold(busy)
			results, err := n.Allocate(quiet(t), claim)
			got := members(t, results)
			if err != nil || len(got) != k {
				t.Errorf("%d GPUs, %s: got %v, %v", k, what, got, err)
				continue
			}
			smallest, _ := topologytest.Bandwidth(m, got)
			expect.Equal(t, 150, smallest, "%d GPUs, %s: GB/s of %v", k, what, got)
		}
	}
}

// A GPU with fewer lanes to NVSwitches than the others is handed out last.
func TestWeakGPUComesLast(t *testing.T) {
	n := topologyNode(t, changed(t, "h200x8", func(s *sim.Spec) { s.GPUs[1].NVSwitchLanes = ptr.To(17) }))
	for _, want := range []string{"[0 2 3 4]", "[5 6]", "[1 7]"} {
		k := strings.Count(want, " ") + 1
		results, err := n.Allocate(quiet(t), newGPUs(k))
		if got := fmt.Sprint(members(t, results)); err != nil || got != want {
			t.Errorf("a claim for %d GPUs gets %s, %v; want %s", k, got, err, want)
		}
	}
}

// A set is closed as soon as one of its GPUs is, whichever that is.
func TestSetsHaveTheTaintsOfTheirGPUs(t *testing.T) {
	m := machine(t, "dgx1")
	for _, sick := range m.GPUs {
		taint := resourceapi.DeviceTaint{Key: v1alpha1.TaintUnhealthy, Value: "xid-79",
			Effect: resourceapi.DeviceTaintEffectNoSchedule}
		pool := devices.Build(m, devices.Options{Pool: "n1/gpu", Mode: mode.Topology,
			GPUTaints: map[string][]resourceapi.DeviceTaint{sick.UUID: {taint}}})
		closed := 0
		for _, slice := range pool.Pools["n1/gpu"].Slices {
			for _, d := range slice.Devices {
				indices, m, err := devices.ParseDeviceName(d.Name)
				expect.NoError(t, err)
				if m == mode.Monitor {
					continue // whoever sees a GPU sees it sick, too
				}
				var want []resourceapi.DeviceTaint
				if slices.Contains(indices, sick.Index) {
					want = []resourceapi.DeviceTaint{taint}
					closed++
				}
				expect.Equal(t, want, d.Taints, "taints of %s where GPU %d is sick", d.Name, sick.Index)
			}
		}
		if closed < 2 {
			t.Errorf("%d devices have GPU %d: want the GPU by itself, and sets", closed, sick.Index)
		}
	}
}
