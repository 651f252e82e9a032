// SPDX-License-Identifier: Apache-2.0

package cdi

import (
	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
)

// toldLibrary answers nvcdi from what was read before, and asks nobody: the
// driver's own answers to the same questions fail for all GPUs while one of them
// is lost, hang with it, or end the process where the library lacks a function.
//
// It has the functions that nvcdi calls. Any other one panics; see NewBase.
type toldLibrary struct {
	nvml.Interface
	machine *gpu.Machine
}

func (l toldLibrary) Init() nvml.Return     { return nvml.SUCCESS }
func (l toldLibrary) Shutdown() nvml.Return { return nvml.SUCCESS }

func (l toldLibrary) SystemGetDriverVersion() (string, nvml.Return) {
	return l.machine.DriverVersion, nvml.SUCCESS
}

func (l toldLibrary) DeviceGetHandleByUUID(uuid string) (nvml.Device, nvml.Return) {
	for _, g := range l.machine.GPUs {
		if g.UUID == uuid {
			return toldDevice{gpu: g}, nvml.SUCCESS
		}
	}
	return nil, nvml.ERROR_NOT_FOUND
}

// toldDevice is a GPU of a toldLibrary.
type toldDevice struct {
	nvml.Device
	gpu gpu.GPU
}

// GPUs in MIG mode are left out before.
func (d toldDevice) IsMigDeviceHandle() (bool, nvml.Return) { return false, nvml.SUCCESS }
func (d toldDevice) GetIndex() (int, nvml.Return)           { return d.gpu.Index, nvml.SUCCESS }
func (d toldDevice) GetUUID() (string, nvml.Return)         { return d.gpu.UUID, nvml.SUCCESS }
func (d toldDevice) GetMinorNumber() (int, nvml.Return)     { return d.gpu.Minor, nvml.SUCCESS }

func (d toldDevice) GetPciInfo() (nvml.PciInfo, nvml.Return) {
	var info nvml.PciInfo
	for i, b := range []byte(d.gpu.PCIBusID)[:min(len(d.gpu.PCIBusID), len(info.BusId)-1)] {
		info.BusId[i] = int8(b)
	}
	return info, nvml.SUCCESS
}
