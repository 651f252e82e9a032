// SPDX-License-Identifier: Apache-2.0

package migmode

import (
	"strings"
	"testing"

	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
)

// machine has a GPU of each kind that matters: one that can be cut, one without MIG, one in MIG mode that is not cut.
func machine() *gpu.Machine {
	off := gpu.GPU{Index: 0, UUID: "GPU-off", ProductName: "NVIDIA H200", MIG: gpu.MIGMode{Capable: true}}
	none := gpu.GPU{Index: 1, UUID: "GPU-none", ProductName: "Tesla T4"}
	return &gpu.Machine{GPUs: []gpu.GPU{off, none}}
}

func partitioned(index int, uuid string, instances ...gpu.Instance) gpu.Partitioned {
	return gpu.Partitioned{Instances: instances, GPU: gpu.GPU{Index: index, UUID: uuid, ProductName: "NVIDIA H200",
		MIG: gpu.MIGMode{Capable: true, Enabled: true, Pending: true}}}
}

func TestChoose(t *testing.T) {
	for _, tt := range []struct {
		name, asked string
		change      func(*gpu.Machine)
		want        string // the UUID, or a part of the refusal
	}{
		{"by its index", "0", nil, "GPU-off"},
		{"by its UUID", "GPU-off", nil, "GPU-off"},
		{"no such GPU", "7", nil, "the driver lists no GPU 7 that can be used, only 0 (NVIDIA H200, GPU-off), 1 (Tesla T4, " +
			"GPU-none)"},
		{"no MIG", "1", nil, "GPU 1 (Tesla T4) has no MIG mode"},
		{"in MIG mode already", "2", func(m *gpu.Machine) {
			m.Partitioned = []gpu.Partitioned{partitioned(2, "GPU-on")}
		}, "GPU-on"},
		{"cut already", "2", func(m *gpu.Machine) {
			m.Partitioned = []gpu.Partitioned{partitioned(2, "GPU-on", gpu.Instance{}, gpu.Instance{})}
		}, "GPU 2 (NVIDIA H200) has MIG instances already (2), which somebody else has made: destroy them " +
			"(nvidia-smi mig -i GPU-on -dci; nvidia-smi mig -i GPU-on -dgi)"},
		{"waits for a reset", "0", func(m *gpu.Machine) { m.GPUs[0].MIG.Pending = true },
			"GPU 0 (NVIDIA H200) waits for a reset, after which its MIG mode is on, and now it is off"},
		{"another one is in MIG mode", "0", func(m *gpu.Machine) {
			m.Partitioned = []gpu.Partitioned{partitioned(2, "GPU-on")}
		}, "GPU 2 is in MIG mode, too"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			m := machine()
			if tt.change != nil {
				tt.change(m)
			}
			got, err := Choose(tt.asked, m)
			switch {
			case err != nil && (strings.HasPrefix(tt.want, "GPU-") || !strings.Contains(err.Error(), tt.want)):
				t.Errorf("refused: %v, want %q", err, tt.want)
			case err == nil && got.UUID != tt.want:
				t.Errorf("chose %q, want %q", got.UUID, tt.want)
			}
		})
	}
}
