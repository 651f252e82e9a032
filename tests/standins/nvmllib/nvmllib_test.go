// SPDX-License-Identifier: Apache-2.0

package nvmllib_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
	gpunvml "github.com/gpushare/dra-driver-gpushare/pkg/gpu/nvml"
	"github.com/gpushare/dra-driver-gpushare/tests/standins/sim"
)

// hung is long enough for the library to answer, and what a worker waits for a call that
// does not return.
const hung = 3 * time.Second

// told is the machine as go-nvml's mock presents it, which unit tests use.
func told(t *testing.T, spec *sim.Spec, root string) *gpu.Machine {
	t.Helper()
	opts := gpunvml.Options{SysFS: filepath.Join(root, sim.SysDir), CallTimeout: hung}
	m, err := gpunvml.Read(t.Context(), spec.NVML(), opts)
	expect.NoError(t, err)
	for i := range m.Faults {
		m.Faults[i].Message = descriptions.Replace(m.Faults[i].Message)
	}
	return m
}

// descriptions are how NVML calls its errors; without NVML go-nvml has their names only.
var descriptions = strings.NewReplacer(
	"ERROR_UNKNOWN", "Unknown Error", "ERROR_NOT_SUPPORTED", "Not Supported", "ERROR_GPU_IS_LOST", "GPU is lost")

// The library and the mock of unit tests tell the same of a machine, whatever is wrong
// with it.
func TestTellsWhatTheMockTells(t *testing.T) {
	content := library(t)
	all := map[string]*sim.Spec{}
	files, err := filepath.Glob(filepath.Join("..", "..", "..", "demo", "machines", "*.yaml"))
	if err != nil || len(files) < 8 {
		t.Fatalf("machine files: %v, %v", files, err)
	}
	for _, file := range files {
		name := strings.TrimSuffix(filepath.Base(file), ".yaml")
		all[name] = load(t, name)
	}
	reversed := load(t, "a10x4")
	slices.Reverse(reversed.GPUs)
	broken := load(t, "v100x4")
	broken.NVLinks[0].LanesBack = new(int)
	all["in another order"], all["a link that one GPU does not see"] = reversed, broken
	sick := func(name string, fault sim.Fault) {
		spec := load(t, "a100x8")
		spec.GPUs[1].Fault = fault
		all[name] = spec
	}
	sick("lost", sim.Fault{Lost: true})
	sick("hangs", sim.Fault{Hangs: true})
	mig := load(t, "a100x8")
	mig.GPUs[1].MIG.Enabled = true
	all["in MIG mode"] = mig
	for _, property := range sim.Properties() {
		for _, ret := range []string{"UNKNOWN", "NOT_SUPPORTED", "GPU_IS_LOST"} {
			sick(string(property)+" "+ret, sim.Fault{Errors: map[sim.Property]string{property: ret}})
		}
	}
	sick("name HANG", sim.Fault{Errors: map[sim.Property]string{"name": "HANG"}})
	for name, spec := range all {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			root := writeRoot(t, spec, content)
			mock, library := told(t, spec, root), startWorker(t, root).read()
			// The mock is not cut: see sim.Spec.NVML.
			for i := range library.Partitioned {
				library.Partitioned[i].Instances = nil
			}
			expect.Equal(t, mock, library, "the library, beside the mock,")
		})
	}
}

func TestLibraryOfAnOldDriver(t *testing.T) {
	content := library(t)
	spec := load(t, "v100x4")
	spec.Driver.Lacks = []string{
		"nvmlDeviceGetArchitecture", "nvmlDeviceGetNumGpuCores", "nvmlDeviceGetNvLinkRemoteDeviceType",
		"nvmlDeviceGetMigMode", "nvmlDeviceGetPciInfo_v3", "nvmlSystemGetCudaDriverVersion", "nvmlDeviceGetCount_v2",
		"nvmlDeviceGetMemoryInfo_v2",
	}
	model := spec.Models["v100-16"]
	model.ReservedMiB = 254
	spec.Models["v100-16"] = model
	m := startWorker(t, writeRoot(t, spec, content)).read()
	if len(m.GPUs) != 4 || m.GPUs[0].Architecture != "" || m.GPUs[0].SMCount != 0 || m.CUDADriverVersion != "" {
		t.Errorf("GPUs %+v, CUDA %q; want 4 without architecture and SM count, and no CUDA version", m.GPUs,
			m.CUDADriverVersion)
	}
	if g := m.GPUs[0]; g.MemoryMiB != 16130 || g.ReservedMiB != 0 {
		t.Errorf("%d MiB, %d reserved; want 16130, and nothing said of what is reserved", g.MemoryMiB, g.ReservedMiB)
	}
	want := gpu.Link{A: 0, B: 3, Kind: gpu.LinkNVLink, Lanes: 2, Generation: 2, GBps: 50}
	if len(m.Links) != 6 || expect.Diff(want, m.Links[2]) != nil {
		t.Errorf("links %+v, want %+v as the third", m.Links, want)
	}

	spec.Driver.Lacks = []string{"nvmlDeviceGetUUID"}
	a := startWorker(t, writeRoot(t, spec, content)).ask(call{What: "read"})
	if !strings.Contains(a.Error, "the library has no nvmlDeviceGetUUID") {
		t.Errorf("a library without what is needed: %q", a.Error)
	}

	spec.Driver.Lacks = []string{"nvmlDeviceGetColour"}
	err := spec.WriteRoot(t.TempDir(), sim.Part{Name: sim.NVMLLibrary, Content: content})
	if err == nil || !strings.Contains(err.Error(), "nvmlDeviceGetColour") {
		t.Errorf("a function that nobody has: %v", err)
	}
}

func TestDriverThatDoesNotWork(t *testing.T) {
	content := library(t)
	for name, tc := range map[string]struct {
		errors map[string]string
		says   string
	}{
		"not loaded":        {map[string]string{"init": "DRIVER_NOT_LOADED"}, "modprobe nvidia"},
		"another version":   {map[string]string{"init": "LIB_RM_VERSION_MISMATCH"}, "reboot the node or reload the module"},
		"no count":          {map[string]string{"count": "UNKNOWN"}, "counting the GPUs"},
		"version hangs":     {map[string]string{"version": "HANG"}, "reading the driver version: no answer in time"},
		"no CUDA version":   {map[string]string{"cuda": "NOT_SUPPORTED"}, ""},
		"no machine at all": {nil, "kernel module is not loaded"},
	} {
		t.Run(name, func(t *testing.T) {
			spec := load(t, "t4x1")
			spec.Driver.Errors = tc.errors
			root := writeRoot(t, spec, content)
			if tc.errors == nil {
				expect.NoError(t, os.Remove(filepath.Join(root, sim.ToldFile)))
			}
			a := startWorker(t, root).ask(call{What: "read"})
			if tc.says == "" && (a.Error != "" || a.Machine.CUDADriverVersion != "") || !strings.Contains(a.Error, tc.says) {
				t.Errorf("%q, want %q", a.Error, tc.says)
			}
		})
	}
}

func change(t *testing.T, root string, f func(*sim.Spec) error) {
	t.Helper()
	expect.NoError(t, sim.Change(root, f))
}

func inject(t *testing.T, root, fault string) {
	t.Helper()
	change(t, root, func(s *sim.Spec) error { return s.Inject(1, fault) })
}

// What is wrong with a GPU is seen by processes that run, and that it no longer is.
func TestFaultsAtRunTime(t *testing.T) {
	spec := load(t, "v100x4")
	root := writeRoot(t, spec, library(t))
	w := startWorker(t, root)
	whole := w.read()
	find := call{What: "by UUID", UUID: whole.GPUs[0].UUID}
	if a := w.ask(find); a.Return != nvml.SUCCESS {
		t.Errorf("finding a GPU: %v", a.Return)
	}

	inject(t, root, "lost")
	if m := w.read(); len(m.GPUs) != 3 || len(m.Faults) != 1 || m.Faults[0].Reason != gpu.FaultLost ||
		m.Faults[0].UUID != whole.GPUs[1].UUID {
		t.Errorf("lost: %d GPUs, faults %v", len(m.GPUs), m.Faults)
	}
	if a := w.ask(find); a.Return != nvml.ERROR_GPU_IS_LOST {
		t.Errorf("finding another GPU than the lost one: %v", a.Return)
	}
	inject(t, root, "heal")
	if m := w.read(); expect.Diff(whole, m) != nil {
		t.Error("healed:", expect.Diff(whole, m))
	}

	inject(t, root, "hang")
	for range 2 {
		m := w.read()
		if len(m.GPUs) != 3 || len(m.Faults) != 1 || !strings.Contains(m.Faults[0].Message, "no answer in time") {
			t.Errorf("hangs: %d GPUs, faults %v", len(m.GPUs), m.Faults)
		}
	}
	// The call that hangs comes back, and only then the GPU is asked again.
	inject(t, root, "heal")
	deadline := time.Now().Add(10 * time.Second)
	for m := w.read(); expect.Diff(whole, m) != nil; m = w.read() {
		if time.Now().After(deadline) {
			t.Fatal("healed:", expect.Diff(whole, m))
		}
	}
}

// A reader sees the machine before or after each change, and nothing in between.
func TestChangesAreWhole(t *testing.T) {
	spec := load(t, "a10x4")
	root := writeRoot(t, spec, library(t))
	w := startWorker(t, root)
	changed, enough := make(chan error, 1), make(chan struct{})
	go func() {
		for i := 0; ; i++ {
			select {
			case <-enough:
				changed <- nil
				return
			default:
			}
			err := sim.Change(root, func(s *sim.Spec) error {
				for c := range s.GPUs {
					s.GPUs[c].Fault.Lost = i%2 == 0
				}
				return nil
			})
			if err != nil {
				changed <- err
				return
			}
		}
	}()
	for range 300 {
		m := w.read()
		if len(m.GPUs)+len(m.Faults) != 4 {
			t.Fatalf("%d GPUs, faults %v", len(m.GPUs), m.Faults)
		}
		for _, f := range m.Faults {
			if f.Reason != gpu.FaultLost {
				t.Fatalf("fault %v", f)
			}
		}
	}
	close(enough)
	if err := <-changed; err != nil {
		t.Error(err)
	}
}

func TestEvents(t *testing.T) {
	root := writeRoot(t, load(t, "v100x4"), library(t))
	inject(t, root, "xid=31") // before anybody listens
	w := startWorker(t, root)
	for i := range 4 {
		if a := w.ask(call{What: "register", GPU: i}); a.Return != nvml.SUCCESS {
			t.Fatalf("register: %v", a.Return)
		}
	}
	if a := w.ask(call{What: "wait", Value: 1}); a.Return != nvml.ERROR_TIMEOUT {
		t.Errorf("nothing happened: %+v", a)
	}
	w.begin(call{What: "wait", Value: 60000})
	began := time.Now()
	inject(t, root, "xid=79")
	xid := w.end()
	if want := (answer{Numbers: []int64{1, nvml.EventTypeXidCriticalError, 79}}); expect.Diff(want, xid) != nil {
		t.Errorf("XID: %+v, want %+v", xid, want)
	}
	t.Logf("told after %s", time.Since(began))
	a := w.ask(call{What: "wait", Value: 1000})
	if want := (answer{Numbers: []int64{1, nvml.EventTypeGpuRecoveryAction, 0}}); expect.Diff(want, a) != nil {
		t.Errorf("recovery action: %+v, want %+v", a, want)
	}
	wants := func(action nvml.DeviceGpuRecoveryAction) {
		t.Helper()
		a := w.ask(call{What: "field", GPU: 1, Value: nvml.FI_DEV_GET_GPU_RECOVERY_ACTION})
		if want := (answer{Numbers: []int64{int64(action)}}); expect.Diff(want, a) != nil {
			t.Errorf("the recovery action: %+v, want %+v", a, want)
		}
	}
	wants(nvml.GPU_RECOVERY_ACTION_GPU_RESET)
	inject(t, root, "heal")
	wants(nvml.GPU_RECOVERY_ACTION_NONE)
	w.ask(call{What: "wait", Value: 1000}) // of the healing
	w.begin(call{What: "wait", Value: 60000})
	inject(t, root, "lost")
	if a := w.end(); a.Return != nvml.ERROR_GPU_IS_LOST {
		t.Errorf("a GPU is lost: %+v", a)
	}
}

func TestUse(t *testing.T) {
	spec := load(t, "a10x4")
	spec.GPUs[3].Fault.Errors = map[sim.Property]string{
		"computeMode": "NOT_SUPPORTED", "processes": "NO_PERMISSION", "ecc": "NOT_SUPPORTED",
	}
	spec.GPUs[2].Fault.Errors = map[sim.Property]string{"setComputeMode": "NO_PERMISSION"}
	root := writeRoot(t, spec, library(t))
	percent, pid := 40, os.Getpid()
	change(t, root, func(s *sim.Spec) error {
		s.GPUs[1].State = sim.State{
			Processes: []sim.Process{{PID: 1, MemoryMiB: 2574, SMPercent: &percent}, {PID: elsewhere, MemoryMiB: 6},
				{PID: pid, MemoryMiB: 60}},
			RemappedRows: sim.RemappedRows{Uncorrected: 2, Failed: true}, Uncorrected: 3,
		}
		return nil
	})
	w := startWorker(t, root)
	other := startWorker(t, root)
	for _, tc := range []struct {
		ask  call
		want answer
	}{
		{call{What: "get mode", GPU: 1}, answer{Numbers: []int64{0}}},
		{call{What: "set mode", GPU: 1, Value: 3}, answer{}},
		{call{What: "get mode", GPU: 1}, answer{Numbers: []int64{3}}},
		{call{What: "get mode", GPU: 0}, answer{Numbers: []int64{0}}},
		{call{What: "set mode", GPU: 1, Value: 1}, answer{Return: nvml.ERROR_NOT_SUPPORTED}},
		{call{What: "set mode", GPU: 2, Value: 3}, answer{Return: nvml.ERROR_NO_PERMISSION}},
		{call{What: "set mode", GPU: 3, Value: 3}, answer{Return: nvml.ERROR_NOT_SUPPORTED}},
		{call{What: "processes", GPU: 1}, answer{Numbers: []int64{1, 2574, int64(pid), 60}}},
		{call{What: "processes", GPU: 0}, answer{}},
		{call{What: "processes", GPU: 3}, answer{Return: nvml.ERROR_NO_PERMISSION}},
		{call{What: "utilization", GPU: 1}, answer{Numbers: []int64{1, 40}}},
		{call{What: "utilization", GPU: 0}, answer{Return: nvml.ERROR_NOT_FOUND}},
		{call{What: "memory", GPU: 1}, answer{Numbers: []int64{23028, 2640, 23028 - 2640}}},
		{call{What: "ecc", GPU: 1}, answer{Numbers: []int64{3}}},
		{call{What: "ecc", GPU: 3}, answer{Numbers: []int64{0}, Return: nvml.ERROR_NOT_SUPPORTED}},
		{call{What: "rows", GPU: 1}, answer{Numbers: []int64{0, 2, 0, 1}}},
		{call{What: "field", GPU: 1, Value: 230}, answer{Numbers: []int64{0}}},
		{call{What: "field", GPU: 1, Value: 4}, answer{Numbers: []int64{0}, Return: nvml.ERROR_NOT_SUPPORTED}},
	} {
		if got := w.ask(tc.ask); expect.Diff(tc.want, got) != nil {
			t.Errorf("%+v: %+v, want %+v", tc.ask, got, tc.want)
		}
	}
	if a := other.ask(call{What: "get mode", GPU: 1}); expect.Diff(a, answer{Numbers: []int64{3}}) != nil {
		t.Errorf("another process sees mode %+v", a)
	}
	expect.NoError(t, sim.UpgradeDriver(root, "580.95.05"))
	after := startWorker(t, root)
	if m := after.read(); m.DriverVersion != "580.95.05" || len(m.GPUs) != 4 {
		t.Errorf("after an upgrade: %+v", m)
	}
	if a := after.ask(call{What: "get mode", GPU: 1}); expect.Diff(a, answer{Numbers: []int64{0}}) != nil {
		t.Errorf("after an upgrade: mode %+v", a)
	}
}
