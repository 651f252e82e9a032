// SPDX-License-Identifier: Apache-2.0

package devices

import (
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/nvidia"
	"github.com/gpushare/dra-driver-gpushare/pkg/mode"
)

// nvidiaAttributes are the attributes that devices of a mode have under the names of NVIDIA's driver, too: those by
// which people select. A device has 32 attributes and capacities at most, of which whole GPUs leave ten, limited shares
// six, and MIG instances one.
func nvidiaAttributes(m mode.Mode) []resourceapi.QualifiedName {
	most := []resourceapi.QualifiedName{v1alpha1.AttrProductName, v1alpha1.AttrArchitecture,
		v1alpha1.AttrComputeCapability, v1alpha1.AttrUUID}
	switch m {
	case mode.Exclusive:
		return append(most, v1alpha1.AttrDriverVersion, v1alpha1.AttrCUDADriverVersion, v1alpha1.AttrBrand,
			v1alpha1.AttrIndex) // the index, which its newer versions lack, is in their examples still
	case mode.CGPU, mode.MPS:
		return append(most, v1alpha1.AttrDriverVersion)
	case mode.MIG:
		return []resourceapi.QualifiedName{v1alpha1.AttrProfile, v1alpha1.AttrParentUUID}
	default:
		return nil
	}
}

// nvidiaNames adds to a device in the mode what it is by the names of NVIDIA's driver. Devices of modes that no claim
// for NVIDIA's driver gets have none. A selector that names an attribute which a device lacks fails, so what devices of
// one mode have does not depend on what else they say.
func nvidiaNames(d *resourceapi.Device, m mode.Mode, memoryMiB int64) {
	names := nvidiaAttributes(m)
	if names == nil {
		return
	}
	for _, name := range names {
		if value, is := d.Attributes[name]; is {
			d.Attributes[nvidia.Named(name)] = value
		}
	}
	switch m {
	case mode.Exclusive:
		attributes(d.Attributes).setString(nvidia.Named(nvidia.AttrType), nvidia.TypeGPU)
	case mode.MIG:
		// No instance uses NVLink, and all have one brand. Other attributes the policy for slices asks for.
		delete(d.Attributes, v1alpha1.AttrNVLinkPeers)
		delete(d.Attributes, v1alpha1.AttrBrand)
	}
	memory := resourceapi.DeviceCapacity{Value: *resource.NewQuantity(memoryMiB<<20, resource.BinarySI)}
	if m.Shared() {
		// To be compared with alone: each claim takes nothing of it, where without a policy the first would take all.
		memory.RequestPolicy = stepPolicy(0, resource.NewQuantity(0, resource.BinarySI), GiB, resource.BinarySI)
	}
	d.Capacity[nvidia.Named(v1alpha1.CapMemory)] = memory
}
