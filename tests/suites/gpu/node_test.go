// SPDX-License-Identifier: Apache-2.0

//go:build gpu

package gpu

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/gpushare/dra-driver-gpushare/cdi"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
	gpunvml "github.com/gpushare/dra-driver-gpushare/pkg/gpu/nvml"
	"github.com/gpushare/dra-driver-gpushare/tests/standins/sim"
)

// node is the machine under test, read as the driver reads it.
type node struct {
	machine    *gpu.Machine
	lib        nvml.Interface
	driverRoot string
	// libraries are directories outside the usual places.
	libraries []string
	simulated bool
}

// openNode reads this machine, or skips the test where there is no driver.
func openNode(t *testing.T) node {
	t.Helper()
	n := node{driverRoot: os.Getenv("GPUSHARE_DRIVER_ROOT"),
		libraries: filepath.SplitList(os.Getenv("GPUSHARE_LIBRARY_PATHS"))}
	var options gpunvml.Options
	if file := os.Getenv("GPUSHARE_MACHINE"); file != "" {
		n.simulated, n.driverRoot = true, filepath.Dir(file)
		options.SysFS = filepath.Join(n.driverRoot, sim.SysDir)
	}
	lib, err := gpunvml.Open(t.Context(), gpunvml.OpenOptions{
		LibraryPath: os.Getenv("GPUSHARE_NVML_LIBRARY"),
		DriverRoot:  n.driverRoot,
	})
	if err != nil {
		skip(t, err)
	}
	t.Cleanup(func() {
		if ret := lib.Shutdown(); ret != nvml.SUCCESS {
			t.Error("shutting NVML down:", ret)
		}
	})
	n.lib = lib
	if n.machine, err = gpunvml.Read(t.Context(), n.lib, options); err != nil {
		t.Fatal(err)
	}
	for _, f := range n.machine.Faults {
		t.Log("left out:", f)
	}
	if len(n.machine.GPUs) == 0 {
		skip(t, "the driver lists no GPU that can be used")
	}
	return n
}

func skip(t *testing.T, why any) {
	t.Helper()
	if os.Getenv("GPUSHARE_REQUIRE_GPU") != "" {
		t.Fatal("cannot be tested here, and GPUSHARE_REQUIRE_GPU is set:", why)
	}
	t.Skip("cannot be tested here:", why)
}

func (n node) base(t *testing.T) *cdi.Base {
	t.Helper()
	b, err := cdi.NewBase(t.Context(), n.machine, cdi.BaseOptions{
		DriverRoot:         n.driverRoot,
		HostDriverRoot:     n.driverRoot,
		LibrarySearchPaths: n.libraries,
	})
	if err != nil {
		t.Fatal(err)
	}
	return b
}
