// SPDX-License-Identifier: Apache-2.0

package migmode

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/gpushare/dra-driver-gpushare/internal/testneeds"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
	gpunvml "github.com/gpushare/dra-driver-gpushare/pkg/gpu/nvml"
	"github.com/gpushare/dra-driver-gpushare/tests/standins/nvmllib"
	"github.com/gpushare/dra-driver-gpushare/tests/standins/sim"
)

// simulated is the driver root of a node with two H200 and an A100, which waits for a reset before it changes its mode.
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
	root, err = filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	if err := spec.WriteRoot(root, sim.Part{Name: sim.NVMLLibrary, Content: content}); err != nil {
		t.Fatal(err)
	}
	library, err = gpunvml.LibraryPath(gpunvml.OpenOptions{DriverRoot: root})
	if err != nil {
		t.Fatal(err)
	}
	return root, library
}

// serve answers for the kernel module until the test ends.
func serve(t *testing.T, root string) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	done := make(chan error, 1)
	go func() { done <- sim.Partitioning{}.ServeMIG(ctx, root) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

func read(t *testing.T, lib nvml.Interface, root string) *gpu.Machine {
	t.Helper()
	m, err := gpunvml.NewReader(lib, gpunvml.Options{SysFS: filepath.Join(root, "sys")}).Read(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// The whole way on the test double: no process can open two libraries, so one test has all of it.
func TestOnASimulatedGPU(t *testing.T) {
	root, library := simulated(t)
	serve(t, root)
	lib, err := gpunvml.Open(t.Context(), gpunvml.OpenOptions{LibraryPath: library})
	if err != nil {
		t.Fatal(err)
	}
	if err := Has(lib); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "mig.json")
	for _, tt := range []struct {
		asked      string
		activation nvml.Return
		want       Mode
	}{{"1", nvml.SUCCESS, Mode{true, true}}, {"2", nvml.ERROR_RESET_REQUIRED, Mode{false, true}}} {
		chosen, err := Choose(tt.asked, read(t, lib, root))
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
			// As after a kill.
			cut(t, library, chosen.UUID)
		} else if _, err := Choose(tt.asked, read(t, lib, root)); err == nil {
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
}

func cut(t *testing.T, library, uuid string) {
	t.Helper()
	partitions := gpunvml.NewPartitions(gpunvml.OpenOptions{LibraryPath: library})
	p := sim.MIGTable("h200-141")[0]
	if _, err := partitions.MakeGPUInstance(t.Context(), uuid,
		gpu.Place{ProfileID: p.ID, Start: p.Starts[0], Size: p.Size}); err != nil {
		t.Fatal(err)
	}
}
