// SPDX-License-Identifier: Apache-2.0

package migmode

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

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
		got, err := Choose(tt.asked, &gpu.Machine{Partitioned: tt.partitioned, GPUs: []gpu.GPU{
			{Index: 0, UUID: "GPU-off", ProductName: "NVIDIA H200", MIG: gpu.MIGMode{Capable: true, Pending: tt.pending}},
			{Index: 1, UUID: "GPU-none", ProductName: "Tesla T4"}}})
		if err == nil && got.UUID != tt.want ||
			err != nil && (strings.HasPrefix(tt.want, "GPU-") || !strings.Contains(err.Error(), tt.want)) {
			t.Errorf("%s: chose %q (%v), want %q", tt.name, got.UUID, err, tt.want)
		}
	}
}

// simulated is the driver root of a node with two H200 and an A100, which waits for a reset before it changes its mode.
// Until the test ends it answers for the kernel module, too.
func simulated(t *testing.T) (root, library string) {
	t.Helper()
	testneeds.DeviceNodes(t)
	content, err := nvmllib.Build(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	spec, err := sim.Load("../testdata/h200x2.yaml")
	if err != nil {
		t.Fatal(err)
	}
	other, err := sim.Load("../../../demo/machines/migx4.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for _, g := range other.GPUs {
		if !g.MIG.Enabled {
			spec.Models[g.Model] = other.Models[g.Model]
			g.BusID = "0000:f0:00.0"
			spec.GPUs = append(spec.GPUs, g)
			break
		}
	}
	if root, err = filepath.EvalSymlinks(t.TempDir()); err != nil {
		t.Fatal(err)
	}
	if err := spec.WriteRoot(root, sim.Part{Name: sim.NVMLLibrary, Content: content}); err != nil {
		t.Fatal(err)
	}
	if library, err = gpunvml.LibraryPath(gpunvml.OpenOptions{DriverRoot: root}); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	done := make(chan error, 1)
	go func() { done <- sim.Partitioning{}.ServeMIG(ctx, root) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return root, library
}

// The whole way on the test double: no process can open two libraries, so one test has all of it.
func TestOnASimulatedGPU(t *testing.T) {
	root, library := simulated(t)
	lib, err := gpunvml.Open(t.Context(), gpunvml.OpenOptions{LibraryPath: library})
	if err != nil {
		t.Fatal(err)
	}
	if err := Has(lib); err != nil {
		t.Fatal(err)
	}
	choose := func(asked string) (gpu.GPU, error) {
		m, err := gpunvml.NewReader(lib, gpunvml.Options{SysFS: filepath.Join(root, "sys")}).Read(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return Choose(asked, m)
	}
	file := filepath.Join(t.TempDir(), "mig.json")
	for _, tt := range []struct {
		asked      string
		activation nvml.Return
		want       Mode
	}{{"1", nvml.SUCCESS, Mode{true, true}}, {"2", nvml.ERROR_RESET_REQUIRED, Mode{false, true}}} {
		chosen, err := choose(tt.asked)
		if err != nil {
			t.Fatal(err)
		}
		if err := (Record{Library: library, UUID: chosen.UUID}).Write(file); err != nil {
			t.Fatal(err)
		}
		activation, mode, err := Set(t.Context(), lib, chosen.UUID, true)
		if err != nil || activation != tt.activation || mode != tt.want {
			t.Errorf("GPU %s: activation status %v, mode %s, error %v", tt.asked, activation, mode, err)
		}
		if mode.Now {
			// What is left after a kill.
			p := sim.MIGTable("h200-141")[0]
			if _, err := gpunvml.NewPartitions(gpunvml.OpenOptions{LibraryPath: library}).MakeGPUInstance(t.Context(),
				chosen.UUID, gpu.Place{ProfileID: p.ID, Start: p.Starts[0], Size: p.Size}); err != nil {
				t.Fatal(err)
			}
		} else if _, err := choose(tt.asked); err == nil {
			t.Error("a GPU that waits for a reset is not refused")
		}
		if err := PutBack(t.Context(), file); err != nil {
			t.Fatal(err)
		}
		if m, err := Read(t.Context(), lib, chosen.UUID); err != nil || m != (Mode{}) {
			t.Errorf("MIG mode is %v (%v), want off", m, err)
		}
		if _, err := os.Stat(file); err == nil {
			t.Error("what was put back is still to be put back")
		}
	}
	// A run without --may-change-mig has changed nothing.
	if err := PutBack(t.Context(), file); err != nil {
		t.Error(err)
	}
}

// Half a record is no record of nothing: the GPU would be left as it is, and nobody told.
func TestDamagedRecord(t *testing.T) {
	file := filepath.Join(t.TempDir(), "mig.json")
	if err := os.WriteFile(file, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := PutBack(t.Context(), file); err == nil {
		t.Error("half a record is no error")
	}
}
