// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/gpushare/dra-driver-gpushare/deployments/hardware/driver"
	"github.com/gpushare/dra-driver-gpushare/deployments/hardware/migmode"
	"github.com/gpushare/dra-driver-gpushare/deployments/hardware/report"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
	gpunvml "github.com/gpushare/dra-driver-gpushare/pkg/gpu/nvml"
)

// readLimit is how long it may take to look at the GPUs: NVML can hang on a sick one.
const readLimit = time.Minute

// look reads the GPUs as the driver does, and has them looked at. NVML is closed then: whoever has a GPU open can keep
// its MIG mode from changing.
func (b *bundle) look(ctx context.Context,
	do func(context.Context, *gpunvml.Reader, nvml.Interface, *gpu.Machine) error) error {
	ctx, cancel := context.WithTimeout(ctx, readLimit)
	defer cancel()
	lib, err := gpunvml.Open(ctx, gpunvml.OpenOptions{LibraryPath: b.driver.NVML})
	if err != nil {
		return err
	}
	reader := gpunvml.NewReader(lib, gpunvml.Options{SysFS: b.sysfs()})
	machine, err := reader.Read(ctx)
	if err == nil {
		err = do(ctx, reader, lib, machine)
	}
	if ret := lib.Shutdown(); ret != nvml.SUCCESS {
		err = errors.Join(err, fmt.Errorf("close NVML: %w", ret))
	}
	return err
}

// sysfs is where a simulated node has its own; empty on a real one.
func (b *bundle) sysfs() string {
	if b.simulated == "" {
		return ""
	}
	return filepath.Join(b.simulated, "sys")
}

// inspect finds out all that decides whether a run may begin, and what it has to put back.
func (b *bundle) inspect(ctx context.Context) (f facts) {
	if b.simulated == "" {
		f.kubelets = named("kubelet")
	}
	f.namespaces = namespaces(b.path("bin/cluster"), "--help")
	mounts, err := os.ReadFile("/proc/self/mounts")
	if err == nil {
		f.cgroups, err = readCgroups(string(mounts))
	}
	f.namespaces = errors.Join(f.namespaces, err)
	b.cgroups = f.cgroups
	if b.driver, f.driver = driver.Find(b.driverRoot, filepath.SplitList(os.Getenv("LD_LIBRARY_PATH"))); f.driver != nil {
		return f
	}
	f.driver = b.look(ctx, func(ctx context.Context, r *gpunvml.Reader, lib nvml.Interface, m *gpu.Machine) error {
		b.machine, b.compute = m, computeModes(ctx, r, m)
		for _, g := range m.GPUs {
			used := usedGPU{name: fmt.Sprintf("GPU %d (%s)", g.Index, g.ProductName)}
			if device, err := r.Device(g.UUID); err == nil {
				pids, _ := device.Processes(ctx) // A GPU that does not tell is not in the way.
				for _, pid := range pids {
					used.processes = append(used.processes, fmt.Sprintf("process %d %s", pid, nameOf(fmt.Sprint(pid))))
				}
			}
			f.gpus = append(f.gpus, used)
		}
		for _, fault := range m.Faults {
			f.leftOut = append(f.leftOut, fault.String())
		}
		for _, p := range m.Partitioned {
			f.leftOut = append(f.leftOut, fmt.Sprintf("GPU %d is in MIG mode, switch it off (nvidia-smi -i %s -mig 0)", p.Index,
				p.UUID))
		}
		if b.mayChangeMIG != "" {
			if f.cut = migmode.Has(lib); f.cut == nil {
				_, f.cut = migmode.Choose(b.mayChangeMIG, m)
			}
		}
		return nil
	})
	return f
}

// computeModes are the GPUs' by UUID, of those that tell them: others are not changed either.
func computeModes(ctx context.Context, r *gpunvml.Reader, m *gpu.Machine) map[string]gpu.ComputeMode {
	modes := map[string]gpu.ComputeMode{}
	for _, g := range m.All() {
		device, err := r.Device(g.UUID)
		if err != nil {
			continue
		}
		if mode, err := device.ComputeMode(ctx); err == nil {
			modes[g.UUID] = mode
		}
	}
	return modes
}

// putBackCompute sets the compute modes that are no longer what they were, and tells of it, and of MIG modes that are
// others.
func (b *bundle) putBackCompute(ctx context.Context) (told []string) {
	err := b.look(ctx, func(ctx context.Context, r *gpunvml.Reader, _ nvml.Interface, m *gpu.Machine) error {
		for uuid, now := range computeModes(ctx, r, m) {
			before, known := b.compute[uuid]
			if !known || now == before {
				continue
			}
			device, err := r.Device(uuid)
			if err == nil {
				err = device.SetComputeMode(ctx, before)
			}
			told = append(told, fmt.Sprintf("GPU %s was in compute mode %s and is put back to %s: error %v", uuid, now, before,
				err))
		}
		for _, g := range m.All() {
			at := slices.IndexFunc(b.machine.All(), func(before gpu.GPU) bool { return before.UUID == g.UUID })
			if at >= 0 && b.machine.All()[at].MIG != g.MIG {
				told = append(told, fmt.Sprintf("MIG mode of GPU %s was %+v and is %+v", g.UUID, b.machine.All()[at].MIG, g.MIG))
			}
		}
		return nil
	})
	switch {
	case err != nil:
		told = append(told, "compute and MIG modes cannot be read: "+err.Error())
	case len(told) == 0:
		told = []string{"compute and MIG modes are as they were found"}
	}
	return told
}

// facts are what the report says of the machine before its tests do.
func (b *bundle) facts() report.Table {
	version, err := os.ReadFile(b.path("VERSION"))
	if err != nil {
		version = []byte("unknown")
	}
	where := "in a driver root of their own (simulated)"
	if d := b.driver; b.simulated == "" {
		where = "in root " + d.Root
		if d.Odd != "" {
			where += ", libraries in " + d.Odd + ", outside of the loader's path"
		}
		if d.MPSControl == "" {
			where += ", no MPS control program"
		}
	}
	return report.Table{Mode: "set-up", Rows: []report.Row{
		{What: "driver under test", Observed: string(version), Result: report.Seen},
		{What: "the NVIDIA driver's files", Observed: where, Result: report.Seen},
		{What: "control groups", Observed: b.cgroups.version(), Result: report.Seen},
	}}
}

// summary is how the report calls the GPUs.
func (b *bundle) summary() string {
	var names []string
	counts := map[string]int{}
	for _, g := range b.machine.GPUs {
		if counts[g.ProductName]++; counts[g.ProductName] == 1 {
			names = append(names, g.ProductName)
		}
	}
	for i, name := range names {
		names[i] = fmt.Sprintf("%d × %s", counts[name], name)
	}
	return strings.Join(names, ", ")
}
