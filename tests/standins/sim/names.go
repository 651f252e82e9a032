// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"maps"
	"slices"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// Property is something that NVML tells about a GPU, or about two.
type Property string

// Properties that a machine file can make fail.
const (
	propertyHandle            Property = "handle" // the GPU's NVML handle
	propertyUUID              Property = "uuid"
	propertyMinor             Property = "minor"
	propertyName              Property = "name"
	propertyMemory            Property = "memory"
	propertyReserved          Property = "reserved" // what the driver keeps of it
	propertyPCI               Property = "pci"
	propertyMIG               Property = "mig"
	propertyBrand             Property = "brand"
	propertyArchitecture      Property = "architecture"
	propertyComputeCapability Property = "computeCapability"
	propertyCores             Property = "cores"
	propertyNVLink            Property = "nvlink"
	propertyTopology          Property = "topology" // the PCIe level between two GPUs
	// These are seen through the library only.
	propertyComputeMode    Property = "computeMode"
	propertySetComputeMode Property = "setComputeMode" // setting it
	propertyProcesses      Property = "processes"
	propertyECC            Property = "ecc"
	propertyRemappedRows   Property = "remappedRows"
	propertyRecoveryAction Property = "recoveryAction"
	propertyEvents         Property = "events" // waiting for them
	// Limits of the GPU's memory by control group: all about them, and setting one.
	propertyMemoryLimits    Property = "memoryLimits"
	propertySetMemoryLimits Property = "setMemoryLimits"
)

// Properties lists the properties that a machine file can make fail.
func Properties() []Property {
	return []Property{
		propertyHandle, propertyUUID, propertyMinor, propertyName, propertyMemory, propertyReserved, propertyPCI,
		propertyMIG,
		propertyBrand, propertyArchitecture, propertyComputeCapability, propertyCores, propertyNVLink, propertyTopology,
		propertyComputeMode, propertySetComputeMode, propertyProcesses, propertyECC, propertyRemappedRows,
		propertyRecoveryAction, propertyEvents, propertyMemoryLimits, propertySetMemoryLimits,
	}
}

func knownProperty(p Property) bool { return slices.Contains(Properties(), p) }

// returnHang is no NVML code: a call that would return it does not return.
const returnHang nvml.Return = -1

var returns = map[string]nvml.Return{
	"HANG":                    returnHang,
	"DRIVER_NOT_LOADED":       nvml.ERROR_DRIVER_NOT_LOADED,
	"GPU_IS_LOST":             nvml.ERROR_GPU_IS_LOST,
	"INSUFFICIENT_SIZE":       nvml.ERROR_INSUFFICIENT_SIZE,
	"INVALID_ARGUMENT":        nvml.ERROR_INVALID_ARGUMENT,
	"LIB_RM_VERSION_MISMATCH": nvml.ERROR_LIB_RM_VERSION_MISMATCH,
	"NOT_FOUND":               nvml.ERROR_NOT_FOUND,
	"NOT_SUPPORTED":           nvml.ERROR_NOT_SUPPORTED,
	"NO_PERMISSION":           nvml.ERROR_NO_PERMISSION,
	"RESET_REQUIRED":          nvml.ERROR_RESET_REQUIRED,
	"TIMEOUT":                 nvml.ERROR_TIMEOUT,
	"UNKNOWN":                 nvml.ERROR_UNKNOWN,
}

// Returns lists what a machine file can make a property answer.
func Returns() []string { return slices.Sorted(maps.Keys(returns)) }

// brands are spelled as go-nvlib spells them, which is what pkg/gpu/nvml reports.
var brands = map[string]nvml.BrandType{
	"GeForce":    nvml.BRAND_GEFORCE,
	"GeForceRTX": nvml.BRAND_GEFORCE_RTX,
	"Nvidia":     nvml.BRAND_NVIDIA,
	"NvidiaRTX":  nvml.BRAND_NVIDIA_RTX,
	"Quadro":     nvml.BRAND_QUADRO,
	"QuadroRTX":  nvml.BRAND_QUADRO_RTX,
	"Tesla":      nvml.BRAND_TESLA,
	"Titan":      nvml.BRAND_TITAN,
}

// Brands lists the brands that a machine file can use.
func Brands() []string { return slices.Sorted(maps.Keys(brands)) }

// architecture is NVML's code, and the NVLink version its GPUs speak.
type architecture struct {
	code   nvml.DeviceArchitecture
	nvlink nvml.NvlinkVersion
}

var architectures = map[string]architecture{
	"Ada Lovelace": {code: nvml.DEVICE_ARCH_ADA},
	"Ampere":       {nvml.DEVICE_ARCH_AMPERE, nvml.NVLINK_VERSION_3_0},
	"Blackwell":    {nvml.DEVICE_ARCH_BLACKWELL, nvml.NVLINK_VERSION_5_0},
	"Hopper":       {nvml.DEVICE_ARCH_HOPPER, nvml.NVLINK_VERSION_4_0},
	"Pascal":       {nvml.DEVICE_ARCH_PASCAL, nvml.NVLINK_VERSION_1_0},
	"Turing":       {nvml.DEVICE_ARCH_TURING, nvml.NVLINK_VERSION_2_2},
	"Volta":        {nvml.DEVICE_ARCH_VOLTA, nvml.NVLINK_VERSION_2_0},
}

// Architectures lists the architectures that a machine file can use.
func Architectures() []string { return slices.Sorted(maps.Keys(architectures)) }
