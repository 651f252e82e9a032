// SPDX-License-Identifier: Apache-2.0

package devices

import (
	"fmt"
	"strconv"
	"strings"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/dynamic-resource-allocation/deviceattribute"

	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
)

type attributes map[resourceapi.QualifiedName]resourceapi.DeviceAttribute

// setString leaves out an empty value: the API server takes an empty string, but a
// selector that compares with it would match GPUs of which nothing is known.
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

func (a attributes) setBool(name resourceapi.QualifiedName, value bool) {
	a[name] = resourceapi.DeviceAttribute{BoolValue: &value}
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

// gpuAttributes describes a GPU independently of the mode it is served in.
func gpuAttributes(m *gpu.Machine, g gpu.GPU) attributes {
	a := attributes{}
	a.setString(v1alpha1.AttrUUID, g.UUID)
	a.setInt(v1alpha1.AttrIndex, int64(g.Index))
	a.setInt(v1alpha1.AttrMinor, int64(g.Minor))
	a.setString(v1alpha1.AttrModel, g.Model)
	a.setString(v1alpha1.AttrProductName, g.ProductName)
	a.setString(v1alpha1.AttrBrand, g.Brand)
	a.setString(v1alpha1.AttrArchitecture, g.Architecture)
	a.setVersion(v1alpha1.AttrComputeCapability, g.ComputeCapability)
	a.setVersion(v1alpha1.AttrDriverVersion, m.DriverVersion)
	a.setVersion(v1alpha1.AttrCUDADriverVersion, m.CUDADriverVersion)
	a.setInt(v1alpha1.AttrMemoryMiB, g.MemoryMiB)
	a.setString(deviceattribute.StandardDeviceAttributePCIBusID, g.PCIBusID)
	a.setString(deviceattribute.StandardDeviceAttributePCIeRoot, g.PCIeRoot)
	if g.NUMANode != nil {
		a.setInt(deviceattribute.StandardDeviceAttributeNUMANode, int64(*g.NUMANode))
	}
	peers, best := nvlink(m, g.Index)
	a.setString(v1alpha1.AttrNVLinkPeers, strings.Join(peers, ","))
	a.setInt(v1alpha1.AttrNVLinkGBps, int64(best))
	return a
}

// nvlink returns the indices of the GPUs that the GPU shares NVLink with, in
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
