// SPDX-License-Identifier: Apache-2.0

package migmode

import (
	"fmt"
	"slices"
	"strings"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
)

// Flag allows it.
const Flag = "--may-change-mig"

// Choose finds the GPU that has this index or UUID, and refuses what must not be cut: above all where somebody else's
// instances are. Pure.
func Choose(asked string, m *gpu.Machine) (gpu.GPU, error) {
	all := m.All()
	at := slices.IndexFunc(all, func(g gpu.GPU) bool { return g.UUID == asked || fmt.Sprint(g.Index) == asked })
	if at < 0 {
		return gpu.GPU{}, fmt.Errorf("%s %s: the driver lists no GPU %s that can be used, only %s", Flag, asked, asked,
			enumerate(all))
	}
	g := all[at]
	name := fmt.Sprintf("%s: GPU %d (%s)", Flag, g.Index, g.ProductName)
	switch mode := g.MIG; {
	case !mode.Capable:
		return gpu.GPU{}, fmt.Errorf("%s has no MIG mode: name another GPU, or run without this option", name)
	case mode.Enabled != mode.Pending:
		return gpu.GPU{}, fmt.Errorf("%s waits for a reset, after which its MIG mode is %s, and now it is %s: reset it "+
			"(nvidia-smi -i %s --gpu-reset) first", name, onOff(mode.Pending), onOff(mode.Enabled), g.UUID)
	}
	for _, p := range m.Partitioned {
		switch {
		case p.UUID != g.UUID:
			// The driver's setting is for all GPUs of a node: it would cut that one, too.
			return gpu.GPU{}, fmt.Errorf("%s can be cut only where no other is in MIG mode, and GPU %d is in MIG mode, too: "+
				"switch that one's off (nvidia-smi -i %s -mig 0) first", name, p.Index, p.UUID)
		case len(p.Instances) > 0:
			return gpu.GPU{}, fmt.Errorf("%s has MIG instances already (%d), which somebody else has made: destroy them "+
				"(nvidia-smi mig -i %s -dci; nvidia-smi mig -i %s -dgi), or name another GPU", name, len(p.Instances), g.UUID,
				g.UUID)
		}
	}
	return g, nil
}

func enumerate(all []gpu.GPU) string {
	var names []string
	for _, g := range all {
		names = append(names, fmt.Sprintf("%d (%s, %s)", g.Index, g.ProductName, g.UUID))
	}
	return strings.Join(names, ", ")
}

func onOff(on bool) string {
	if on {
		return "on"
	}
	return "off"
}

// functions are those of NVML that a run calls. go-nvml ends a program that calls what the library lacks.
var functions = []string{"nvmlDeviceSetMigMode", "nvmlDeviceGetMaxMigDeviceCount",
	"nvmlDeviceGetMigDeviceHandleByIndex", "nvmlDeviceGetGpuInstanceById", "nvmlDeviceCreateGpuInstanceWithPlacement",
	"nvmlGpuInstanceGetInfo", "nvmlGpuInstanceDestroy", "nvmlGpuInstanceGetComputeInstanceProfileInfo",
	"nvmlGpuInstanceCreateComputeInstance", "nvmlGpuInstanceGetComputeInstances", "nvmlComputeInstanceGetInfo",
	"nvmlComputeInstanceDestroy"}

// Has refuses a driver that is too old.
func Has(lib nvml.Interface) error {
	for _, name := range functions {
		if err := lib.Extensions().LookupSymbol(name); err != nil {
			return fmt.Errorf("%s: the driver's NVML has no %s: install a newer driver, or run without this option: %w", Flag,
				name, err)
		}
	}
	return nil
}
