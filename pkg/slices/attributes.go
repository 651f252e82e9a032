package slices

import (
	"fmt"
	"strconv"
	"strings"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/dynamic-resource-allocation/deviceattribute"

	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
)

// Attributes of a device. Names without a domain belong to the driver's
// domain: in CEL, device.attributes["gpu.aliyun.com"].<name>.
const (
	AttrUUID              resourceapi.QualifiedName = "uuid"
	AttrIndex             resourceapi.QualifiedName = "index"
	AttrMinor             resourceapi.QualifiedName = "minor"
	AttrModel             resourceapi.QualifiedName = "model"
	AttrProductName       resourceapi.QualifiedName = "productName"
	AttrBrand             resourceapi.QualifiedName = "brand"
	AttrArchitecture      resourceapi.QualifiedName = "architecture"
	AttrComputeCapability resourceapi.QualifiedName = "cudaComputeCapability"
	AttrDriverVersion     resourceapi.QualifiedName = "driverVersion"
	AttrCUDADriverVersion resourceapi.QualifiedName = "cudaDriverVersion"
	AttrMode              resourceapi.QualifiedName = "mode"
	AttrIsolation         resourceapi.QualifiedName = "isolation"
	AttrIsolationLevel    resourceapi.QualifiedName = "isolationLevel"
	AttrMemoryMiB         resourceapi.QualifiedName = "memoryMiB"
	AttrNVLinkPeers       resourceapi.QualifiedName = "nvlinkPeers"
	AttrNVLinkGBps        resourceapi.QualifiedName = "nvlinkGBps"
	// AttrGPUCount and AttrMembers are published in mode topology: how many
	// cards a device is, and the indices of a set's cards as in "0,1,2,3".
	AttrGPUCount resourceapi.QualifiedName = "gpuCount"
	AttrMembers  resourceapi.QualifiedName = "members"
)

// Capacities of a device.
const (
	CapMemory resourceapi.QualifiedName = "memory" // bytes
	CapCores  resourceapi.QualifiedName = "cores"  // percent of the card's compute
	CapSlots  resourceapi.QualifiedName = "slots"  // shares of the card
)

type attributes map[resourceapi.QualifiedName]resourceapi.DeviceAttribute

// setString leaves out an empty value: the API server takes an empty string, but a
// selector that compares with it would match cards of which nothing is known.
func (a attributes) setString(name resourceapi.QualifiedName, value string) {
	value = AttributeString(value)
	if value == "" {
		return
	}
	a[name] = resourceapi.DeviceAttribute{StringValue: &value}
}

// AttributeString is a string as the attributes show it: cut to what the API
// server takes. Its limit counts bytes, so that the cut can go through a character,
// of which nothing is left then.
func AttributeString(value string) string {
	return strings.ToValidUTF8(value[:min(len(value), resourceapi.DeviceAttributeMaxValueLength)], "")
}

func (a attributes) setInt(name resourceapi.QualifiedName, value int64) {
	a[name] = resourceapi.DeviceAttribute{IntValue: &value}
}

func (a attributes) setVersion(name resourceapi.QualifiedName, value string) {
	v, ok := semanticVersion(value)
	if !ok {
		return
	}
	a[name] = resourceapi.DeviceAttribute{VersionValue: &v}
}

// semanticVersion rewrites an NVIDIA version ("570.124.06", "12.8", "7.0") as
// the API's version type wants it (semver 2.0.0): three numbers without
// leading zeros. It returns false for anything that is not one to three
// numbers.
func semanticVersion(v string) (string, bool) {
	parts := strings.Split(v, ".")
	if len(parts) > 3 {
		return "", false
	}
	numbers := [3]uint64{}
	for i, part := range parts {
		n, err := strconv.ParseUint(part, 10, 32)
		if err != nil {
			return "", false
		}
		numbers[i] = n
	}
	return fmt.Sprintf("%d.%d.%d", numbers[0], numbers[1], numbers[2]), true
}

// cardAttributes describes a card independently of the mode it is served in.
func cardAttributes(m *gpu.Machine, g gpu.GPU) attributes {
	a := attributes{}
	a.setString(AttrUUID, g.UUID)
	a.setInt(AttrIndex, int64(g.Index))
	a.setInt(AttrMinor, int64(g.Minor))
	a.setString(AttrModel, g.Model)
	a.setString(AttrProductName, g.ProductName)
	a.setString(AttrBrand, g.Brand)
	a.setString(AttrArchitecture, g.Architecture)
	a.setVersion(AttrComputeCapability, g.ComputeCapability)
	a.setVersion(AttrDriverVersion, m.DriverVersion)
	a.setVersion(AttrCUDADriverVersion, m.CUDADriverVersion)
	a.setInt(AttrMemoryMiB, g.MemoryMiB)
	a.setString(deviceattribute.StandardDeviceAttributePCIBusID, g.PCIBusID)
	a.setString(deviceattribute.StandardDeviceAttributePCIeRoot, g.PCIeRoot)
	if g.NUMANode != nil {
		a.setInt(deviceattribute.StandardDeviceAttributeNUMANode, int64(*g.NUMANode))
	}
	peers, best := nvlink(m, g.Index)
	a.setString(AttrNVLinkPeers, strings.Join(peers, ","))
	a.setInt(AttrNVLinkGBps, int64(best))
	return a
}

// nvlink returns the indices of the cards that the card shares NVLink with, in
// order, and the bandwidth to the best linked of them in GB/s.
func nvlink(m *gpu.Machine, index int) (peers []string, bestGBps int) {
	for _, l := range m.Links {
		if l.Kind != gpu.LinkNVLink || (l.A != index && l.B != index) {
			continue
		}
		peers = append(peers, strconv.Itoa(l.A+l.B-index))
		bestGBps = max(bestGBps, l.GBps)
	}
	return peers, bestGBps
}
