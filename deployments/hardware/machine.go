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
	"github.com/gpushare/dra-driver-gpushare/deployments/hardware/preflight"
	"github.com/gpushare/dra-driver-gpushare/deployments/hardware/report"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
	gpunvml "github.com/gpushare/dra-driver-gpushare/pkg/gpu/nvml"
)

// gpus are the machine's GPUs as the driver reads them, and what it leaves to others.
type gpus struct {
	lib     nvml.Interface
	machine *gpu.Machine
	// settings are the GPUs' by UUID, as they were found.
	settings map[string]setting
}

// setting is what a run must leave as it was.
type setting struct {
	device nvml.Device
	// compute is -1 where the GPU does not tell it, and mig where it has no MIG; else it is 0 or 1.
	compute gpu.ComputeMode
	mig     int
}

// openGPUs reads the GPUs. sysfs is where a simulated node has its own; empty for the
// machine's.
func openGPUs(ctx context.Context, d *driver.Driver, sysfs string) (*gpus, error) {
	lib, err := gpunvml.Open(ctx, gpunvml.OpenOptions{LibraryPath: d.NVML})
	if err != nil {
		return nil, err
	}
	machine, err := gpunvml.NewReader(lib, gpunvml.Options{SysFS: sysfs}).Read(ctx)
	if err != nil {
		return nil, err
	}
	g := &gpus{lib: lib, machine: machine}
	g.settings = g.readSettings()
	return g, nil
}

// readSettings leaves out what a GPU does not tell: it is not changed either.
func (g *gpus) readSettings() map[string]setting {
	settings := map[string]setting{}
	count, ret := g.lib.DeviceGetCount()
	if ret != nvml.SUCCESS {
		return settings
	}
	for i := range count {
		device, ret := g.lib.DeviceGetHandleByIndex(i)
		if ret != nvml.SUCCESS {
			continue
		}
		uuid, ret := device.GetUUID()
		if ret != nvml.SUCCESS {
			continue
		}
		s := setting{device: device, compute: -1, mig: -1}
		if mode, ret := device.GetComputeMode(); ret == nvml.SUCCESS {
			s.compute = gpu.ComputeMode(mode)
		}
		if mode, _, ret := device.GetMigMode(); ret == nvml.SUCCESS {
			s.mig = mode
		}
		settings[uuid] = s
	}
	return settings
}

// putBack sets the compute modes that are no longer what they were, and tells of it.
func (g *gpus) putBack() []string {
	if ret := g.lib.Init(); ret != nvml.SUCCESS {
		return []string{"compute and MIG modes cannot be read: " + ret.Error()}
	}
	var told []string
	for uuid, now := range g.readSettings() {
		before, known := g.settings[uuid]
		if !known {
			continue
		}
		if now.compute != before.compute && before.compute >= 0 {
			ret := now.device.SetComputeMode(nvml.ComputeMode(before.compute))
			told = append(told, fmt.Sprintf("GPU %s was in compute mode %s and is put back to %s: %v",
				uuid, now.compute, before.compute, ret))
		}
		if now.mig != before.mig {
			told = append(told, fmt.Sprintf("MIG mode of GPU %s was %d and is %d", uuid, before.mig, now.mig))
		}
	}
	if len(told) == 0 {
		told = append(told, "compute and MIG modes are as they were found")
	}
	slices.Sort(told)
	return told
}

// inUse are the GPUs with the programs that use them.
func (g *gpus) inUse() []preflight.GPU {
	var found []preflight.GPU
	for _, one := range g.machine.GPUs {
		f := preflight.GPU{Index: one.Index, Name: one.ProductName}
		if s, known := g.settings[one.UUID]; known {
			processes, ret := s.device.GetComputeRunningProcesses()
			if ret == nvml.SUCCESS {
				for _, p := range processes {
					f.Processes = append(
						f.Processes,
						preflight.Process{PID: int(p.Pid), Name: nameOf(p.Pid), UsedMiB: int64(p.UsedGpuMemory >> 20)},
					)
				}
			}
		}
		found = append(found, f)
	}
	return found
}

func nameOf(pid uint32) string {
	comm, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid))
	if err != nil {
		return "(of another PID namespace)"
	}
	return strings.TrimSpace(string(comm))
}

// sysfs is where a simulated node has its own; empty on a real one.
func (b *bundle) sysfs() string {
	if b.simulated == "" {
		return ""
	}
	return filepath.Join(b.simulated, "sys")
}

// inspect finds out all that decides whether a run may begin.
func (b *bundle) inspect(ctx context.Context) (preflight.Facts, *gpus) {
	facts := preflight.Facts{UID: os.Geteuid(), Dir: b.payload, NeededMiB: neededMiB}
	if facts.UID != 0 {
		return facts, nil
	}
	if _, err := os.Stat(filepath.Join(b.clusterDir(), "state.json")); err == nil {
		facts.Earlier = b.clusterDir()
	}
	if b.simulated == "" {
		facts.Kubelets = preflight.Named("kubelet")
	}
	var err error
	if facts.FreeMiB, err = preflight.FreeMiB(b.payload); err != nil {
		facts.FreeMiB = facts.NeededMiB
	}
	facts.Namespaces = preflight.Namespaces(b.path("bin/cluster"), "--help")
	if facts.Cgroups, err = preflight.ReadCgroups(); err != nil {
		facts.Namespaces = errors.Join(facts.Namespaces, err)
	}
	b.cgroups = facts.Cgroups
	b.driver, facts.Driver = driver.Find(b.driverRoot, filepath.SplitList(os.Getenv("LD_LIBRARY_PATH")))
	if facts.Driver != nil {
		return facts, nil
	}
	// NVML can hang on a sick GPU.
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	g, err := openGPUs(ctx, b.driver, b.sysfs())
	if err != nil {
		facts.Driver = err
		return facts, nil
	}
	facts.GPUs = g.inUse()
	for _, fault := range g.machine.Faults {
		facts.LeftOut = append(facts.LeftOut, fault.String())
	}
	for _, p := range g.machine.Partitioned {
		facts.LeftOut = append(facts.LeftOut, fmt.Sprintf("GPU %d is in MIG mode, switch it off (nvidia-smi -i %s -mig 0)",
			p.Index, p.UUID))
	}
	if b.mayChangeMIG != "" {
		if facts.Cut = migmode.Has(g.lib); facts.Cut == nil {
			_, facts.Cut = migmode.Choose(b.mayChangeMIG, g.machine)
		}
	}
	return facts, g
}

// facts are what the report says of the run before its tests do.
func (b *bundle) facts() []report.Fact {
	return []report.Fact{{Name: "Driver under test", Value: b.version()}, {Name: "Driver's files", Value: b.files()},
		{Name: "Control groups", Value: b.cgroups.Version()}}
}

// files says where the driver is; the directory of a simulated one means nothing to a
// reader.
func (b *bundle) files() string {
	d := b.driver
	if b.simulated != "" {
		return "in a driver root of their own (simulated)"
	}
	where := "in root " + d.Root
	if d.Odd != "" {
		where += ", libraries in " + d.Odd + ", outside of the loader's path"
	}
	if d.MPSControl == "" {
		where += ", no MPS control program"
	}
	return where
}

// summary is how the report calls the GPUs.
func summary(machine *gpu.Machine) string {
	var names []string
	counts := map[string]int{}
	for _, g := range machine.GPUs {
		if counts[g.ProductName] == 0 {
			names = append(names, g.ProductName)
		}
		counts[g.ProductName]++
	}
	for i, name := range names {
		names[i] = fmt.Sprintf("%d × %s", counts[name], name)
	}
	return strings.Join(names, ", ")
}
