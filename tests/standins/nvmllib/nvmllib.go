// SPDX-License-Identifier: Apache-2.0

// Package nvmllib is the NVML library of simulated nodes, in C: a libnvidia-ml.so.1 that
// answers as a machine file says. build.sh builds it, tests/standins/sim writes it into a driver
// root, and programs open it there as they open NVIDIA's. It is in no image.
//
// Its source, in src, implements what NVIDIA's nvml.h declares, so the compiler checks
// the form of each function. What it answers is worked out by tests/standins/sim (see
// sim.ToldFile): here are no machines, only lookups, and what happens at run time –
// events, compute modes, calls that hang.
package nvmllib

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/gpushare/dra-driver-gpushare/internal/testcache"
)

// Build builds the library, for tests of this module. It needs a C compiler.
func Build(ctx context.Context) ([]byte, error) {
	module, err := exec.CommandContext(ctx, "go", "env", "GOMOD").Output()
	if err != nil {
		return nil, fmt.Errorf("find the module: %w", err)
	}
	dir, err := os.MkdirTemp("", "nvmllib")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir) //nolint:errcheck // What is left is small.
	path := filepath.Join(dir, "libnvidia-ml.so")
	source := filepath.Join(filepath.Dir(string(bytes.TrimSpace(module))), "tests/standins/nvmllib")
	if err := testcache.Reads(source); err != nil {
		return nil, err
	}
	script := filepath.Join(source, "build.sh")
	if out, err := exec.CommandContext(ctx, script, path).CombinedOutput(); err != nil {
		return nil, fmt.Errorf("build the NVML library of simulated nodes: %w: %s", err, bytes.TrimSpace(out))
	}
	return os.ReadFile(path)
}
