// SPDX-License-Identifier: Apache-2.0

package legacy

import (
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/dynamic-resource-allocation/deviceattribute"
)

// Selectors of devices of dra-driver-cpu: those of a socket, or of a NUMA node, which has one, and those of no NUMA
// node. CPUs of the whole machine are of neither; claims for them need parameters that another scheduler writes. Up to
// its release 0.2.0 the driver named NUMA nodes by attributes of its own alone.
const (
	ofSocket     = `"socketID" in device.attributes["dra.cpu"]`
	ofNoNUMANode = `!("numaNode" in device.attributes["resource.kubernetes.io"]) && ` +
		`!("numaNodeID" in device.attributes["dra.cpu"])`
)

// Grouping is what the CPUs of a device of dra-driver-cpu have in common.
type Grouping int

// The groupings. Pods with CPUs near GPUs are served by the first two.
const (
	// ByNUMANode is the NUMA node, by the attribute that Kubernetes defines.
	ByNUMANode Grouping = iota
	BySocket
	// ByOldNUMANode is the NUMA node, by an attribute that no GPU has.
	ByOldNUMANode
	ByMachine
	// EachCPU says that the device is one CPU.
	EachCPU
)

// GroupingOf returns what the CPUs of a device have in common, and for ByNUMANode which NUMA node that is.
func GroupingOf(d *resourceapi.Device) (by Grouping, numaNode int64) {
	node := d.Attributes[deviceattribute.StandardDeviceAttributeNUMANode].IntValue
	switch {
	case d.Attributes[ClassCPUs+"/cpuID"].IntValue != nil:
		return EachCPU, 0
	case node != nil:
		return ByNUMANode, *node
	case d.Attributes[ClassCPUs+"/numaNodeID"].IntValue != nil:
		return ByOldNUMANode, 0
	case d.Attributes[ClassCPUs+"/socketID"].IntValue != nil:
		return BySocket, 0
	default:
		return ByMachine, 0
	}
}
