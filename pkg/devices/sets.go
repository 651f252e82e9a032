// SPDX-License-Identifier: Apache-2.0

package devices

import (
	"cmp"
	"slices"
	"strconv"
	"strings"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/dynamic-resource-allocation/deviceattribute"
	"k8s.io/dynamic-resource-allocation/resourceslice"

	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
	"github.com/gpushare/dra-driver-gpushare/pkg/topology"
)

// modeRetained is the mode that retained sets show: no DeviceClass selects
// it, so that no further selector, which may ask for attributes that such a
// device does not have, is applied to them.
const modeRetained = "withdrawn"

// topologyPool returns single GPUs and the machine's linked sets of them. Only
// where there are sets are GPUs counted: counters cost every scheduling cycle
// of the cluster before Kubernetes 1.37 (about 0.1 ms per node that has
// them).
//
// Single GPUs come first: a claim that does not say how many GPUs a device
// is to have gets single ones. Their order is the links', not Options.Order.
func topologyPool(m *gpu.Machine, o Options) resourceslice.DriverResources {
	var devices []resourceapi.Device
	var gpus [][]int // of each device
	for _, g := range ordered(m, topology.Singles(m)) {
		d := device(m, g, o)
		attributes(d.Attributes).setInt(v1alpha1.AttrGPUCount, 1)
		devices, gpus = append(devices, d), append(gpus, []int{g.Index})
	}
	for _, set := range topology.Sets(m) {
		devices, gpus = append(devices, setDevice(m, set, o)), append(gpus, set.GPUs)
	}
	for _, set := range o.Retained {
		if !slices.ContainsFunc(gpus, func(published []int) bool { return slices.Equal(published, set) }) {
			devices, gpus = append(devices, retainedDevice(set, o)), append(gpus, set)
		}
	}
	if len(devices) == len(m.GPUs) {
		return withInstances(m, o, devices, nil)
	}
	for i := range devices {
		devices[i].ConsumesCounters = wholeGPUs(gpus[i]...)
		// What shows that it is several GPUs needs no further attribute: a fifteenth, and each evaluation of a selector by
		// the scheduler allocates twice as much.
		if len(gpus[i]) == 1 {
			attributes(devices[i].Attributes).setBool(v1alpha1.AttrMonitor, false)
		}
	}
	counted := slices.Concat(gpus...)
	slices.Sort(counted)
	return withInstances(m, o, devices, gpuCounters(slices.Compact(counted)))
}

// setDevice describes a set by all that its GPUs, which are of one model, have in
// common: a selector that asks for an attribute that a device lacks is an error that
// stops scheduling. Memory is that of its smallest GPU, compute that of each.
func setDevice(m *gpu.Machine, set topology.Set, o Options) resourceapi.Device {
	var members []gpu.GPU
	taints := slices.Clone(o.Taints)
	for _, g := range m.GPUs {
		if slices.Contains(set.GPUs, g.Index) {
			members = append(members, g)
			taints = withTaints(taints, o.GPUTaints[g.UUID])
		}
	}
	smallest := slices.MinFunc(members, func(a, b gpu.GPU) int { return cmp.Compare(a.MemoryMiB, b.MemoryMiB) })
	a := attributes{}
	a.setString(v1alpha1.AttrMode, string(o.Mode))
	a.setString(v1alpha1.AttrIsolation, o.Isolation)
	a.setString(v1alpha1.AttrIsolationLevel, o.IsolationLevel)
	a.setInt(v1alpha1.AttrGPUCount, int64(len(set.GPUs)))
	a.setString(v1alpha1.AttrMembers, joined(set.GPUs))
	a.setInt(v1alpha1.AttrNVLinkGBps, int64(set.NVLinkGBps))
	a.setString(v1alpha1.AttrModel, smallest.Model)
	a.setString(v1alpha1.AttrProductName, smallest.ProductName)
	a.setString(v1alpha1.AttrBrand, smallest.Brand)
	a.setString(v1alpha1.AttrArchitecture, smallest.Architecture)
	a.setVersion(v1alpha1.AttrComputeCapability, smallest.ComputeCapability)
	a.setVersion(v1alpha1.AttrDriverVersion, m.DriverVersion)
	a.setVersion(v1alpha1.AttrCUDADriverVersion, m.CUDADriverVersion)
	a.setInt(v1alpha1.AttrMemoryMiB, smallest.MemoryMiB)
	if node := smallest.NUMANode; node != nil && !slices.ContainsFunc(members, func(g gpu.GPU) bool {
		return g.NUMANode == nil || *g.NUMANode != *node
	}) {
		a.setInt(deviceattribute.StandardDeviceAttributeNUMANode, int64(*node))
	}
	if !slices.ContainsFunc(members, func(g gpu.GPU) bool { return g.PCIeRoot != smallest.PCIeRoot }) {
		a.setString(deviceattribute.StandardDeviceAttributePCIeRoot, smallest.PCIeRoot)
	}
	return resourceapi.Device{
		Name: SetName(set.GPUs), Attributes: a, Taints: taints, Capacity: wholeCapacity(smallest),
	}
}

func retainedDevice(gpus []int, o Options) resourceapi.Device {
	a := attributes{}
	a.setString(v1alpha1.AttrMode, modeRetained)
	a.setInt(v1alpha1.AttrGPUCount, int64(len(gpus)))
	a.setString(v1alpha1.AttrMembers, joined(gpus))
	closed := resourceapi.DeviceTaint{Key: v1alpha1.TaintWithdrawn, Effect: resourceapi.DeviceTaintEffectNoSchedule}
	return resourceapi.Device{Name: SetName(gpus), Attributes: a, Taints: append(slices.Clone(o.Taints), closed)}
}

// IsTaint returns a function that reports whether a taint has the key.
func IsTaint(key string) func(resourceapi.DeviceTaint) bool {
	return func(t resourceapi.DeviceTaint) bool { return t.Key == key }
}

// withTaints adds those taints whose key is not there yet.
func withTaints(taints, more []resourceapi.DeviceTaint) []resourceapi.DeviceTaint {
	for _, taint := range more {
		if !slices.ContainsFunc(taints, IsTaint(taint.Key)) {
			taints = append(taints, taint)
		}
	}
	return taints
}

func joined(indices []int) string {
	out := make([]string, 0, len(indices))
	for _, index := range indices {
		out = append(out, strconv.Itoa(index))
	}
	return strings.Join(out, ",")
}
