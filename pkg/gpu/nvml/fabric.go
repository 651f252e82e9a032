// SPDX-License-Identifier: Apache-2.0

package nvml

import (
	"context"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
)

// readFabric reads whether NVIDIA's fabric manager has connected the GPU to the machine's NVSwitches. Until it has,
// CUDA gives no program the GPU (error 802). GPUs before Hopper, and without NVSwitches, do not tell. It fails only if
// the GPU answers no more.
func (r *Reader) readFabric(ctx context.Context, c *cachedGPU) error {
	info, err := optional(ctx, r, c.Calls, "reading the state of the NVLink fabric", "nvmlDeviceGetGpuFabricInfo",
		c.handle.GetGpuFabricInfo)
	if gone(err) {
		return err
	}
	switch {
	case err != nil:
	case info.State == nvml.GPU_FABRIC_STATE_NOT_STARTED, info.State == nvml.GPU_FABRIC_STATE_IN_PROGRESS:
		c.notInFabric = true
	case info.State == nvml.GPU_FABRIC_STATE_COMPLETED:
		c.notInFabric = nvml.Return(info.Status) != nvml.SUCCESS
	}
	return nil
}

// fabricFaults finds the GPUs that the fabric manager has not connected, in the order of the GPUs.
func fabricFaults(gpus []*cachedGPU) []gpu.FabricFault {
	var faults []gpu.FabricFault
	for _, c := range gpus {
		if c.notInFabric && c.failure == nil && !c.display {
			faults = append(faults, gpu.FabricFault{Index: c.gpu.Index})
		}
	}
	return faults
}
