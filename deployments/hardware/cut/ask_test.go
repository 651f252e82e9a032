// SPDX-License-Identifier: Apache-2.0

package cut

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/gpushare/dra-driver-gpushare/deployments/hardware/report"
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

func observed(rows []report.Row, what string) string {
	at := slices.IndexFunc(rows, func(r report.Row) bool { return r.What == what })
	if at < 0 {
		return "there is no such row"
	}
	return string(rows[at].Result) + " " + rows[at].Observed
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
	chosen, err := Choose("1", read(t, lib, root))
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "mig.json")
	g := New(lib, library, chosen, root)
	on, ready := g.SwitchOn(t.Context(), file)
	if !ready {
		t.Fatalf("%+v", on)
	}
	rows, small := g.Ask(t.Context())
	if small != "1g.18gb" {
		t.Errorf("the smallest profile is %q", small)
	}
	for _, row := range rows {
		if row.Result == report.Failed {
			t.Errorf("%+v", row)
		}
	}
	for what, want := range map[string]string{
		"profiles and placements with MIG on":                          "ok 7, the same",
		"GPU instance 3g.71gb at slice 4":                              "ok id 1; made ",
		"MIG devices that NVML lists while it has no compute instance": "ok 0",
		"capability gpu1/gi1/ci0/access":                               "ok DeviceFileMinor: 148",
		"the same place again: ids":                                    "ok GPU instance 1, compute instance 0",
		"a 1g.18gb at slice 4, where a 3g.71gb is":                     "ok making 1g.18gb at slice 4: Insufficient",
		"GPU instance 1g.18gb at slice 3":                              "ok id 10; made ",
	} {
		if got := observed(rows, what); !strings.HasPrefix(got, want) {
			t.Errorf("%s: %q, want %q", what, got, want)
		}
	}
	checkPutBack(t, g, file)
	checkResetNeeded(t, lib, library, root)
}

// checkPutBack also has instances to destroy, as after a kill.
func checkPutBack(t *testing.T, g *GPU, file string) {
	t.Helper()
	p, err := newPlan(sim.MIGTable("h200-141"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := g.make(t.Context(), p.alone); err != nil {
		t.Fatal(err)
	}
	if err := PutBack(t.Context(), file); err != nil {
		t.Fatal(err)
	}
	device, err := g.device(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if m, err := g.mode(t.Context(), device); err != nil || m != (mode{}) {
		t.Errorf("MIG mode is %v (%v), want off", m, err)
	}
	if _, err := os.Stat(file); err == nil {
		t.Error("what was put back is still to be put back")
	}
}

func checkResetNeeded(t *testing.T, lib nvml.Interface, library, root string) {
	t.Helper()
	ampere, err := Choose("2", read(t, lib, root))
	if err != nil {
		t.Fatal(err)
	}
	g, file := New(lib, library, ampere, root), filepath.Join(t.TempDir(), "mig.json")
	rows, ready := g.SwitchOn(t.Context(), file)
	if ready || len(rows) != 2 || rows[0].Result != report.NotRun ||
		!strings.HasPrefix(rows[0].Observed, "off, on after a reset; activation status: ") {
		t.Errorf("a GPU that needs a reset: ready %v, %+v", ready, rows)
	}
	if _, err := Choose("2", read(t, lib, root)); err == nil {
		t.Error("a GPU that waits for a reset is not refused")
	}
	if err := PutBack(t.Context(), file); err != nil {
		t.Fatal(err)
	}
	if _, err := Choose("2", read(t, lib, root)); err != nil {
		t.Errorf("after it was put back: %v", err)
	}
}
