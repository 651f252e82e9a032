// SPDX-License-Identifier: Apache-2.0

package nvml

import (
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock/server"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
)

// GPUs that the fabric manager has not connected are told, and offered: a virtual machine may do without it.
func TestGPUsThatTheFabricManagerHasNotConnected(t *testing.T) {
	lib := load(t, "h200x8").NVML()
	answers := map[int]nvml.GpuFabricInfo{
		0: {State: nvml.GPU_FABRIC_STATE_NOT_SUPPORTED},
		1: {State: nvml.GPU_FABRIC_STATE_NOT_STARTED},
		2: {State: nvml.GPU_FABRIC_STATE_IN_PROGRESS},
		3: {State: nvml.GPU_FABRIC_STATE_COMPLETED},
		4: {State: nvml.GPU_FABRIC_STATE_COMPLETED, Status: uint32(nvml.ERROR_UNKNOWN)},
	}
	for i := range 8 {
		d, _ := lib.DeviceGetHandleByIndex(i)
		d.(*server.Device).GetGpuFabricInfoFunc = func() (nvml.GpuFabricInfo, nvml.Return) {
			if info, told := answers[i]; told {
				return info, nvml.SUCCESS
			}
			return nvml.GpuFabricInfo{}, nvml.ERROR_NOT_SUPPORTED
		}
	}
	m := read(t, lib, Options{})
	expect.Equal(t, []gpu.FabricFault{{Index: 1}, {Index: 2}, {Index: 4}}, m.FabricFaults, "fabric faults")
	expect.Equal(t, 8, len(m.GPUs), "GPUs that are offered")
}
