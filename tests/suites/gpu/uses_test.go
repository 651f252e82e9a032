// SPDX-License-Identifier: Apache-2.0

//go:build gpu

package gpu

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
	gpunvml "github.com/gpushare/dra-driver-gpushare/pkg/gpu/nvml"
	"github.com/gpushare/dra-driver-gpushare/pkg/mode"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/podcgroup"
)

// What pkg/node/audit goes by: the driver lists programs on the GPU with their memory, and tells
// clients of MPS from all others. Nothing else should use the GPU.
func TestProcessesOnTheGPU(t *testing.T) {
	if os.Getenv("GPUSHARE_MACHINE") != "" {
		t.Skip("the simulated driver does not know which programs run on this machine")
	}
	m := openMPSNode(t)
	uses := gpunvml.NewUses(gpunvml.OpenOptions{LibraryPath: os.Getenv("GPUSHARE_NVML_LIBRARY"), DriverRoot: m.driverRoot})
	read := func(p *program) (gpu.Use, gpu.Process) {
		t.Helper()
		all, err := uses.Read(t.Context())
		if err != nil {
			t.Error(err)
		}
		for _, use := range all {
			for _, process := range use.Processes {
				if use.UUID == m.gpu.UUID && process.PID == p.cmd.Process.Pid {
					return use, process
				}
			}
		}
		t.Fatalf("process %d is not listed on GPU %s: %+v", p.cmd.Process.Pid, m.gpu.UUID, all)
		return gpu.Use{}, gpu.Process{}
	}
	show := func(what string, use gpu.Use, p gpu.Process) {
		percent := "not told"
		if p.SMPercent != nil {
			percent = fmt.Sprintf("%d %%", *p.SMPercent)
		}
		report(t, what, "", fmt.Sprintf("%d MiB, utilization %s, client of MPS: %t", p.MemoryMiB, percent, p.MPSClient),
			fmt.Sprintf("the driver tells clients of MPS: %t", use.TellsMPS))
		if p.MemoryMiB < 1 {
			t.Errorf("%s holds %d MiB, as the driver says", what, p.MemoryMiB)
		}
	}

	beside := startProgram(t, nil, 0, []string{"LD_LIBRARY_PATH=" + m.libraryPath}, m.probe, "spin", spinSeconds)
	use, process := read(beside)
	show("a program without MPS", use, process)
	if process.MPSClient {
		t.Error("a program without MPS is taken for a client of MPS")
	}
	beside.goOn()
	beside.answer()

	m.supervise(t)
	client := m.start(t, m.grant(t, mode.MPS, units, 0), 0, "spin", spinSeconds)
	use, process = read(client)
	show("a client of MPS", use, process)
	if use.TellsMPS && !process.MPSClient {
		t.Error("a client of MPS is not told to be one: it would be taken for a process beside MPS")
	}
	servers := 0
	for _, p := range use.Processes {
		program, err := podcgroup.Processes("/proc").Program(p.PID)
		if err == nil && strings.HasPrefix(program, "nvidia-cuda-mps") {
			servers++
			show("the server of MPS ("+program+")", use, p)
		}
	}
	if servers != 1 {
		t.Errorf("%d servers of MPS are on the GPU by their names, want 1: %+v", servers, use.Processes)
	}
	client.goOn()
	client.answer()
}
