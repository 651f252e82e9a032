// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/gpushare/dra-driver-gpushare/deployments/hardware/steps"
)

// memoryLimitFunctions came with release 615 of the driver. go-nvml ends a program that calls what the library lacks.
var memoryLimitFunctions = []string{"nvmlDeviceSetMemoryLimits_v1", "nvmlDeviceGetMemoryLimits_v1"}

// noMemoryLimits says why the driver has no memory limits by control group; empty if it has.
func (g *gpus) noMemoryLimits() string {
	for _, name := range memoryLimitFunctions {
		if g.lib.Extensions().LookupSymbol(name) != nil {
			return fmt.Sprintf("symbol absent: driver %s has no %s, which came with release 615", g.machine.DriverVersion, name)
		}
	}
	return ""
}

// memoryLimits are those of the first GPU; nil where the driver has none.
func (g *gpus) memoryLimits() steps.MemoryLimits {
	if g.noMemoryLimits() != "" || len(g.machine.GPUs) == 0 {
		return nil
	}
	return limits{g.settings[g.machine.GPUs[0].UUID].device}
}

// limits are the memory limits of a GPU.
type limits struct{ device nvml.Device }

func (l limits) Set(dir string, softMiB, hardMiB int64) error {
	hard := uint64(hardMiB) << 20
	if hardMiB < 0 {
		hard = nvml.DEVICE_MEMORY_LIMIT_MAX
	}
	if ret := l.device.SetMemoryLimits_v1(dir, uint64(softMiB)<<20, hard); ret != nvml.SUCCESS {
		return ret
	}
	return nil
}

func (l limits) Get(dir string) (steps.MemoryLimit, error) {
	got, ret := l.device.GetMemoryLimits_v1(dir)
	if ret != nvml.SUCCESS {
		return steps.MemoryLimit{}, ret
	}
	limit := steps.MemoryLimit{SoftMiB: int64(got.SoftLimit >> 20), HardMiB: int64(got.HardLimit >> 20),
		UsedMiB: int64(got.CurrentUsed >> 20)}
	if got.HardLimit == nvml.DEVICE_MEMORY_LIMIT_MAX {
		limit.HardMiB = steps.NoLimit
	}
	return limit, nil
}
