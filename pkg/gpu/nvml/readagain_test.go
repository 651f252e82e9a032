// SPDX-License-Identifier: Apache-2.0

package nvml

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock/server"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
	"github.com/gpushare/dra-driver-gpushare/tests/standins/sim"
)

// A GPU that is lost keeps its place and name.
func TestReadKnowsALostGPU(t *testing.T) {
	spec := load(t, "a10x4")
	slices.Reverse(spec.GPUs)
	lib := spec.NVML().(*server.Server)
	r := NewReader(lib, Options{})
	whole := readBy(t, r)
	spec.GPUs[0].Fault.Lost = true
	sound := lib.Devices[0]
	lib.Devices[0] = spec.NVML().(*server.Server).Devices[0]
	m := readBy(t, r)
	if len(m.Faults) != 1 || m.Faults[0].Index != 3 || m.Faults[0].UUID != whole.GPUs[3].UUID ||
		m.Faults[0].Reason != gpu.FaultLost {
		t.Errorf("faults %v, want GPU 3 lost", m.Faults)
	}
	expect.Equal(t, whole.GPUs[:3], m.GPUs, "the other GPUs")
	lib.Devices[0] = sound
	expect.Equal(t, whole, readBy(t, r), "the machine after it came back")
}

// GB10 has no memory of its own, and some drivers leave the minor number to the
// kernel module.
func TestReadWhatNVMLDoesNotSupport(t *testing.T) {
	proc := t.TempDir()
	write := func(path, content string) {
		path = filepath.Join(proc, path)
		expect.NoError(t, errors.Join(os.MkdirAll(filepath.Dir(path), 0o755),
			os.WriteFile(path, []byte(content), 0o644)))
	}
	write("meminfo", "MemTotal:       125829120 kB\nMemFree:        1024 kB\n")
	write("driver/nvidia/gpus/0000:3b:00.0/information", "Model: \t\t Tesla T4\nDevice Minor: \t 5\n")
	spec := load(t, "t4x1")
	spec.GPUs[0].BusID = "0000:3b:00.0"
	spec.GPUs[0].Fault.Errors = map[sim.Property]string{"memory": "NOT_SUPPORTED", "minor": "NOT_SUPPORTED"}
	m := read(t, spec.NVML(), Options{ProcFS: proc})
	if len(m.GPUs) != 1 || m.GPUs[0].MemoryMiB != 122880 || !m.GPUs[0].HostMemory || m.GPUs[0].Minor != 5 {
		t.Errorf("GPUs %+v, faults %v; want one with minor 5 and the host's memory", m.GPUs, m.Faults)
	}
	m = read(t, spec.NVML(), Options{ProcFS: t.TempDir()})
	if len(m.Faults) != 1 || !strings.Contains(m.Faults[0].Message, "0000:3b:00.0/information") {
		t.Errorf("faults %v, want one that names what was looked for", m.Faults)
	}
	write("sys/kernel/osrelease", "6.6.87.2-microsoft-standard-WSL2\n")
	expect.NoError(t, os.RemoveAll(filepath.Join(proc, "driver")))
	m = read(t, spec.NVML(), Options{ProcFS: proc})
	if len(m.Faults) != 1 || !strings.Contains(m.Faults[0].Message, "Windows Subsystem for Linux") {
		t.Errorf("faults %v, want one that says that it is WSL", m.Faults)
	}
}

func without(lib nvml.Interface, functions ...string) *server.Server {
	s := lib.(*server.Server)
	s.LookupSymbolFunc = func(name string) error {
		if len(functions) == 0 || slices.Contains(functions, name) {
			return errors.New("undefined symbol")
		}
		return nil
	}
	return s
}

func TestReadWithAnOldLibrary(t *testing.T) {
	lib := without(load(t, "v100x4").NVML(), "nvmlDeviceGetArchitecture", "nvmlDeviceGetNumGpuCores",
		"nvmlDeviceGetNvLinkRemoteDeviceType", "nvmlDeviceGetMigMode")
	m := read(t, lib, Options{})
	if len(m.GPUs) != 4 || m.GPUs[0].Architecture != "" || m.GPUs[0].SMCount != 0 {
		t.Errorf("GPUs %+v, want 4 without architecture and SM count", m.GPUs)
	}
	// The lanes' peers are found by address, the generation by version.
	want := gpu.Link{A: 0, B: 3, Kind: gpu.LinkNVLink, Lanes: 2, Generation: 2, GBps: 50}
	expect.Equal(t, want, m.Links[2], "link 2")
}

// A call to a function that the library does not have would end the process; here
// it panics.
func TestReadCallsOnlyWhatTheLibraryHas(t *testing.T) {
	lib := without(load(t, "v100x4").NVML())
	lib.SystemGetCudaDriverVersionFunc = nil
	for _, d := range lib.Devices {
		d := d.(*server.Device)
		d.GetBrandFunc, d.GetArchitectureFunc, d.GetCudaComputeCapabilityFunc, d.GetNumGpuCoresFunc, d.GetMigModeFunc = nil,
			nil, nil, nil, nil
		d.GetNvLinkStateFunc, d.GetNvLinkVersionFunc, d.GetNvLinkRemoteDeviceTypeFunc, d.GetNvLinkRemotePciInfoFunc = nil,
			nil, nil, nil
		d.GetTopologyCommonAncestorFunc = nil
	}
	if m := read(t, lib, Options{}); len(m.GPUs) != 4 || len(m.Faults) != 0 {
		t.Errorf("GPUs %+v, faults %v; want 4 GPUs", m.GPUs, m.Faults)
	}
}

func TestReadNumbersByPCIAddress(t *testing.T) {
	spec := load(t, "a10x4")
	// NVML's order is against the PCI order, and minors are another thing yet.
	c := spec.GPUs
	c[0], c[1], c[2], c[3] = c[3], c[2], c[1], c[0]
	c[0].Minor, c[1].Minor, c[2].Minor, c[3].Minor = new(1), new(0), new(3), new(2)
	m := read(t, spec.NVML(), Options{})
	var got []string
	for i, g := range m.GPUs {
		expect.Equal(t, i, g.Index, "index of GPU %d", i)
		got = append(got, g.PCIBusID)
	}
	expect.Equal(t, []string{"0000:17:00.0", "0000:31:00.0", "0000:b1:00.0", "0000:ca:00.0"}, got, "PCI addresses")
	if m.GPUs[0].Minor != 2 || m.GPUs[3].Minor != 1 {
		t.Errorf("minors %d, %d, want 2, 1", m.GPUs[0].Minor, m.GPUs[3].Minor)
	}
}

func TestReadFailsAsAWhole(t *testing.T) {
	const hangs = 2 * hung
	for _, tc := range []struct {
		name    string
		prepare func(*server.Server)
		says    string
	}{
		{"no driver version", func(s *server.Server) {
			s.SystemGetDriverVersionFunc = func() (string, nvml.Return) { return "", nvml.ERROR_UNINITIALIZED }
		}, "reading the driver version"},
		{"no count", func(s *server.Server) {
			s.DeviceGetCountFunc = func() (int, nvml.Return) { return 0, nvml.ERROR_UNKNOWN }
		}, "counting the GPUs"},
		{"count hangs", func(s *server.Server) {
			s.DeviceGetCountFunc = func() (int, nvml.Return) { time.Sleep(hangs); return 0, nvml.SUCCESS }
		}, "counting the GPUs: no answer in time from NVML"},
		{"CUDA version hangs", func(s *server.Server) {
			s.SystemGetCudaDriverVersionFunc = func() (int, nvml.Return) { time.Sleep(hangs); return 0, nvml.SUCCESS }
		}, "reading the CUDA version: no answer in time from NVML"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				defer time.Sleep(hangs)
				lib := load(t, "t4x1").NVML().(*server.Server)
				tc.prepare(lib)
				_, err := Read(t.Context(), lib, Options{CallTimeout: hung})
				expect.Error(t, err, tc.says, "nvidia-smi")
			})
		})
	}
}

func TestReadWithoutCUDAVersion(t *testing.T) {
	lib := load(t, "t4x1").NVML().(*server.Server)
	lib.SystemGetCudaDriverVersionFunc = func() (int, nvml.Return) { return 0, nvml.ERROR_NOT_SUPPORTED }
	if m := read(t, lib, Options{}); len(m.GPUs) != 1 || m.CUDADriverVersion != "" {
		t.Errorf("got %+v, want one GPU and no CUDA version", m)
	}
}

func TestReadStopsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	lib := load(t, "t4x1").NVML().(*server.Server)
	lib.DeviceGetCountFunc = func() (int, nvml.Return) { cancel(); return 1, nvml.SUCCESS }
	_, err := Read(ctx, lib, Options{})
	expect.ErrorIs(t, err, context.Canceled)
}
