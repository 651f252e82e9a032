// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/gpushare/dra-driver-gpushare/deployments/hardware/driver"
	"github.com/gpushare/dra-driver-gpushare/deployments/hardware/modes"
	gpunvml "github.com/gpushare/dra-driver-gpushare/pkg/gpu/nvml"
)

// facts are what decides whether a machine can be used as it is, before anything is changed on it. What ./run looks at
// before it unpacks is not among them.
type facts struct {
	// kubelets are the processes of a cluster that the machine is already part of.
	kubelets []string
	// noCluster is why the machine cannot run a cluster, a line for each reason.
	noCluster string
	// driver is why the driver cannot be used, nil if it can; gpus are those it lists, with the processes that use
	// them, leftOut why others cannot be used.
	driver  error
	gpus    []usedGPU
	leftOut []string
	// cut is why the GPU that may be cut into MIG instances must not be; nil if there is no such reason.
	cut error
}

type usedGPU struct {
	name      string
	processes []string
}

// problems are the reasons not to start, a line each, with what to do about it.
func (f facts) problems() []string {
	var problems []string
	add := func(format string, args ...any) {
		problems = append(problems, strings.Join(strings.Fields(fmt.Sprintf(format, args...)), " "))
	}
	for _, kubelet := range f.kubelets {
		add("a kubelet runs on this machine (process %s), whose pods may use the GPUs at any time: stop it first", kubelet)
	}
	for line := range strings.Lines(f.noCluster) {
		add("%s", line)
	}
	switch {
	case f.driver != nil:
		add("%v", f.driver)
	case len(f.gpus) == 0 && len(f.leftOut) > 0:
		add("no GPU can be used: %s", strings.Join(f.leftOut, "; "))
	case len(f.gpus) == 0:
		add("the NVIDIA driver lists no GPU")
	}
	if f.cut != nil {
		add("%v", f.cut)
	}
	for _, g := range f.gpus {
		if len(g.processes) > 0 {
			add("%s is in use by %s: wait until they end, or end them", g.name, strings.Join(g.processes, ", "))
		}
	}
	return problems
}

// inspect finds out all that decides whether a run may begin, and what it has to put back.
func (b *bundle) inspect(ctx context.Context) (f facts) {
	if b.simulated == "" {
		f.kubelets = named("kubelet")
	}
	var err error
	if f.noCluster, err = b.program(ctx, "", "bin/cluster", "check"); err != nil {
		f.noCluster = err.Error()
	}
	if b.driver, f.driver = driver.Find(b.driverRoot, filepath.SplitList(os.Getenv("LD_LIBRARY_PATH"))); f.driver == nil {
		f.driver = b.inspectGPUs(ctx, &f)
	}
	return f
}

// readLimit is how long it may take to look at the GPUs: NVML can hang on a sick one.
const readLimit = time.Minute

// inspectGPUs reads the GPUs as the driver does. NVML is closed then: whoever has a GPU open can keep its MIG mode from
// changing.
func (b *bundle) inspectGPUs(ctx context.Context, f *facts) (err error) {
	ctx, cancel := context.WithTimeout(ctx, readLimit)
	defer cancel()
	options := gpunvml.OpenOptions{LibraryPath: b.driver.NVML}
	if b.simulated != "" {
		options.SysFS = filepath.Join(b.simulated, "sys")
	}
	lib, err := gpunvml.Open(ctx, options)
	if err != nil {
		return err
	}
	defer func() {
		if ret := lib.Shutdown(); ret != nvml.SUCCESS {
			err = errors.Join(err, fmt.Errorf("close NVML: %w", ret))
		}
	}()
	reader := gpunvml.NewReader(lib, gpunvml.Options{SysFS: options.SysFS})
	m, err := reader.Read(ctx)
	if err != nil {
		return err
	}
	for _, g := range m.GPUs {
		used := usedGPU{name: fmt.Sprintf("GPU %d (%s)", g.Index, g.ProductName)}
		if device, err := reader.Device(g.UUID); err == nil {
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
	b.gpus, b.found = m.GPUs, modes.Read(ctx, options, reader, m)
	if b.mayChangeMIG != "" {
		f.cut = b.found.MayCut(b.mayChangeMIG, lib, m)
	}
	return nil
}

// named are the numbers of the processes of that name.
func named(name string) (found []string) {
	files, _ := filepath.Glob("/proc/[0-9]*/comm") // The pattern is well-formed.
	for _, file := range files {
		if pid := filepath.Base(filepath.Dir(file)); nameOf(pid) == name {
			found = append(found, pid)
		}
	}
	return found
}

func nameOf(pid string) string {
	comm, err := os.ReadFile(filepath.Join("/proc", pid, "comm"))
	if err != nil {
		return "(of another PID namespace)"
	}
	return strings.TrimSpace(string(comm))
}
