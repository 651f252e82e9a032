// SPDX-License-Identifier: Apache-2.0

package cpu

import (
	"fmt"
	"maps"
	"slices"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/dynamic-resource-allocation/deviceattribute"
	"k8s.io/utils/ptr"
)

// Shape is how a version of the driver describes its devices.
type Shape string

// The shapes, as read in the driver's source: its main branch at commit de98098 of August 2026, and its newest release
// before that. Only the main branch has the attribute that Kubernetes defines for NUMA nodes.
const (
	Main    Shape = "main"
	Release Shape = "v0.2.0"
)

// Layout is what becomes a device: the driver's settings for modes and groups.
type Layout string

// The layouts. ByNUMANode is the default.
const (
	ByNUMANode Layout = "numanode"
	BySocket   Layout = "socket"
	ByMachine  Layout = "machine"
	Individual Layout = "individual"
)

// Devices are what the driver publishes of so many CPUs by NUMA node, each of which is a socket.
func Devices(shape Shape, layout Layout, cpus map[int64]int64) []resourceapi.Device {
	var out []resourceapi.Device
	all, next := int64(0), 0
	for _, numa := range slices.Sorted(maps.Keys(cpus)) {
		amount := cpus[numa]
		all += amount
		switch layout {
		case ByNUMANode:
			out = append(out, group(fmt.Sprintf("cpudevnuma%03d", numa), amount,
				attributes{DriverName + "/socketID": numa}.at(shape, numa)))
		case BySocket:
			out = append(out, group(fmt.Sprintf("cpudevsocket%03d", numa), amount,
				attributes{DriverName + "/socketID": numa}))
		case Individual:
			for range amount {
				of := attributes{DriverName + "/socketID": numa, DriverName + "/coreID": int64(next),
					DriverName + "/cpuID": int64(next)}
				out = append(out, resourceapi.Device{Name: fmt.Sprintf("cpudev%03d", next),
					Attributes: of.at(shape, numa).published()})
				next++
			}
		case ByMachine:
		}
	}
	if layout == ByMachine {
		out = append(out, group(machine, all, attributes{}))
	}
	return out
}

// attributes are those that are numbers.
type attributes map[resourceapi.QualifiedName]int64

// at adds the names that a version of the driver has for a NUMA node.
func (a attributes) at(shape Shape, numa int64) attributes {
	a[DriverName+"/numaNodeID"], a["dra.net/numaNode"] = numa, numa
	if shape == Main {
		a[deviceattribute.StandardDeviceAttributeNUMANode] = numa
	}
	return a
}

func (a attributes) published() map[resourceapi.QualifiedName]resourceapi.DeviceAttribute {
	out := map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{
		DriverName + "/smtEnabled": {BoolValue: ptr.To(false)}}
	for name, value := range a {
		out[name] = resourceapi.DeviceAttribute{IntValue: &value}
	}
	return out
}

// group is a device of which claims consume CPUs.
func group(name string, amount int64, of attributes) resourceapi.Device {
	of[DriverName+"/numCPUs"] = amount
	return resourceapi.Device{
		Name: name, AllowMultipleAllocations: ptr.To(true), Attributes: of.published(),
		Capacity: map[resourceapi.QualifiedName]resourceapi.DeviceCapacity{
			capacity: {Value: *resource.NewQuantity(amount, resource.DecimalSI)}},
	}
}
