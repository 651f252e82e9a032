// SPDX-License-Identifier: Apache-2.0

package modes

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/internal/testneeds"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
	gpunvml "github.com/gpushare/dra-driver-gpushare/pkg/gpu/nvml"
	"github.com/gpushare/dra-driver-gpushare/tests/standins/nvmllib"
	"github.com/gpushare/dra-driver-gpushare/tests/standins/sim"
)

func TestChoose(t *testing.T) {
	on := func(instances ...gpu.Instance) []gpu.Partitioned {
		return []gpu.Partitioned{{Instances: instances, GPU: gpu.GPU{Index: 2, UUID: "GPU-on", ProductName: "NVIDIA H200",
			MIG: gpu.MIGMode{Capable: true, Enabled: true, Pending: true}}}}
	}
	for _, tt := range []struct {
		name, asked string
		partitioned []gpu.Partitioned
		pending     bool
		want        string // the UUID, or a part of the refusal
	}{
		{name: "by its index", asked: "0", want: "GPU-off"},
		{name: "by its UUID", asked: "GPU-off", want: "GPU-off"},
		{name: "no such GPU", asked: "7",
			want: "the driver lists no GPU 7 that can be used, only 0 (NVIDIA H200, GPU-off), 1 (Tesla T4, GPU-none)"},
		{name: "no MIG", asked: "1", want: "GPU 1 (Tesla T4) has no MIG mode"},
		{name: "in MIG mode already", asked: "2", partitioned: on(), want: "GPU-on"},
		{name: "cut already", asked: "2", partitioned: on(gpu.Instance{}, gpu.Instance{}),
			want: "GPU 2 (NVIDIA H200) has MIG instances already (2), which somebody else has made: destroy them " +
				"(nvidia-smi mig -i GPU-on -dci; nvidia-smi mig -i GPU-on -dgi)"},
		{name: "waits for a reset", asked: "0", pending: true,
			want: "GPU 0 (NVIDIA H200) waits for a reset, after which its MIG mode is on, and now it is off"},
		{name: "another one is in MIG mode", asked: "0", partitioned: on(), want: "GPU 2 is in MIG mode, too"},
	} {
		got, err := choose(tt.asked, &gpu.Machine{Partitioned: tt.partitioned, GPUs: []gpu.GPU{
			{Index: 0, UUID: "GPU-off", ProductName: "NVIDIA H200", MIG: gpu.MIGMode{Capable: true, Pending: tt.pending}},
			{Index: 1, UUID: "GPU-none", ProductName: "Tesla T4"}}})
		if err == nil && got.UUID != tt.want ||
			err != nil && (strings.HasPrefix(tt.want, "GPU-") || !strings.Contains(err.Error(), tt.want)) {
			t.Errorf("%s: chose %q (%v), want %q", tt.name, got.UUID, err, tt.want)
		}
	}
}

// simulated is the driver of a node with two H200 and a third GPU, which waits for a reset before it changes its mode.
// Until the test ends it answers for the kernel module, too.
func simulated(t *testing.T) gpunvml.OpenOptions {
	t.Helper()
	testneeds.DeviceNodes(t)
	content, err := nvmllib.Build(t.Context())
	expect.NoError(t, err)
	spec, err := sim.Load("../testdata/h200x2.yaml")
	expect.NoError(t, err)
	waits, third := spec.Models["h200"], spec.GPUs[1]
	waits.Architecture = "Ampere"
	spec.Models["waits"] = waits
	third.Model, third.BusID = "waits", "0000:f0:00.0"
	spec.GPUs = append(spec.GPUs, third)
	root, err := filepath.EvalSymlinks(t.TempDir())
	expect.NoError(t, err)
	expect.NoError(t, spec.WriteRoot(root, sim.Part{Name: sim.NVMLLibrary, Content: content}))
	library, err := gpunvml.LibraryPath(gpunvml.OpenOptions{DriverRoot: root})
	expect.NoError(t, err)
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	done := make(chan error, 1)
	go func() { done <- sim.Partitioning{}.ServeMIG(ctx, root) }()
	t.Cleanup(func() {
		cancel()
		expect.NoError(t, <-done)
	})
	return gpunvml.OpenOptions{LibraryPath: library, SysFS: filepath.Join(root, sim.SysDir)}
}

// The whole way on the test double: no process can open two libraries, so one test has all of it.
func TestOnASimulatedGPU(t *testing.T) {
	driver := simulated(t)
	lib, err := gpunvml.Open(t.Context(), driver)
	expect.NoError(t, err)
	read := func() (*gpunvml.Reader, *gpu.Machine) {
		reader := gpunvml.NewReader(lib, gpunvml.Options{SysFS: driver.SysFS})
		m, err := reader.Read(t.Context())
		expect.NoError(t, err)
		return reader, m
	}
	file := filepath.Join(t.TempDir(), "modes.json")
	for _, tt := range []struct {
		asked      string
		activation nvml.Return
		on         bool
	}{{"1", nvml.SUCCESS, true}, {"2", nvml.ERROR_RESET_REQUIRED, false}} {
		reader, m := read()
		before := Read(t.Context(), driver, reader, m)
		expect.NoError(t, before.MayCut(tt.asked, lib, m))
		expect.NoError(t, In(file).Store(before))

		device, err := reader.Device(m.GPUs[0].UUID)
		expect.NoError(t, err)
		expect.NoError(t, device.SetComputeMode(t.Context(), gpu.ComputeExclusiveProcess))
		activation, mode, err := SetMIG(t.Context(), lib, before.Cut, true)
		want := gpu.MIGMode{Capable: true, Enabled: tt.on, Pending: true}
		if err != nil || activation != tt.activation || mode != want {
			t.Errorf("GPU %s: activation status %v, mode %s, error %v", tt.asked, activation, Tell(mode), err)
		}
		if tt.on {
			// What is left after a kill.
			_, err := gpunvml.NewPartitions(driver).MakeGPUInstance(t.Context(), before.Cut,
				sim.MIGTable("h200-141")[0].At(0).PlaceOf())
			expect.NoError(t, err)
		} else {
			_, waiting := read()
			expect.Error(t, before.MayCut(tt.asked, lib, waiting), "waits for a reset")
		}

		told, err := PutBack(t.Context(), file)
		expect.NoError(t, err)
		expect.Says(t, strings.Join(told, "; "), m.GPUs[0].UUID+" was in compute mode EXCLUSIVE_PROCESS")
		reader, m = read()
		after := Read(t.Context(), driver, reader, m)
		written, _, err := In(file).Load()
		expect.NoError(t, err)
		before.Cut = ""
		expect.Equal(t, before, after, "modes")
		expect.Equal(t, before, written, "what is written down")
		told, err = PutBack(t.Context(), file)
		expect.NoError(t, err)
		expect.Equal(t, []string{"compute and MIG modes are as they were found"}, told, "put back again")
	}
}

// Without a record nothing was changed. Half a record is no record of nothing: the GPU would be left as it is, and
// nobody told.
func TestDamagedRecord(t *testing.T) {
	file := filepath.Join(t.TempDir(), "modes.json")
	_, err := PutBack(t.Context(), file)
	expect.NoError(t, err)
	expect.NoError(t, os.WriteFile(file, []byte("{"), 0o600))
	if _, err := PutBack(t.Context(), file); err == nil {
		t.Error("half a record is no error")
	}
}
