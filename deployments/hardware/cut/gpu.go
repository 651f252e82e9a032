// SPDX-License-Identifier: Apache-2.0

package cut

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/gpushare/dra-driver-gpushare/deployments/hardware/mig"
	"github.com/gpushare/dra-driver-gpushare/deployments/hardware/report"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu/bounded"
	gpunvml "github.com/gpushare/dra-driver-gpushare/pkg/gpu/nvml"
	"github.com/gpushare/dra-driver-gpushare/tests/standins/sim"
)

// callLimit is how long one call may take. Others have seen 1.5 s for an instance, and ten where GPUs are busy.
const callLimit = 30 * time.Second

// GPU is the one that may be cut.
type GPU struct {
	gpu.GPU
	lib     nvml.Interface
	library string
	// root has proc and dev, which the kernel module shows capabilities in.
	root       string
	calls      *bounded.Calls
	partitions *gpunvml.Partitions
	// off is what the driver tells that it can be cut into before its mode is switched.
	off []sim.MIGProfile
}

// New is for a GPU of Choose. library is the path of lib; root is that of a simulated node, or "/".
func New(lib nvml.Interface, library string, g gpu.GPU, root string) *GPU {
	return &GPU{GPU: g, lib: lib, library: library, root: root, calls: bounded.New("NVML", callLimit),
		partitions: gpunvml.NewPartitions(gpunvml.OpenOptions{LibraryPath: library})}
}

// call makes one call of NVML, and measures it.
func call[T any](ctx context.Context, g *GPU, what string, do func() (T, nvml.Return)) (T, time.Duration, error) {
	began := time.Now()
	got, err := bounded.Try(ctx, g.calls, what, func() (T, error) {
		got, ret := do()
		if ret != nvml.SUCCESS {
			return got, ret
		}
		return got, nil
	})
	return got, time.Since(began), err
}

// device is looked up anew, since handles may not outlive a change of the mode.
func (g *GPU) device(ctx context.Context) (nvml.Device, error) {
	device, _, err := call(ctx, g, "opening GPU "+g.UUID, func() (nvml.Device, nvml.Return) {
		return g.lib.DeviceGetHandleByUUID(g.UUID)
	})
	return device, err
}

// mode is whether MIG mode is on, and whether it will be after the next reset.
type mode struct{ now, pending bool }

func (m mode) String() string {
	return fmt.Sprintf("%s, %s after a reset", onOff(m.now), onOff(m.pending))
}

func (g *GPU) mode(ctx context.Context, device nvml.Device) (mode, error) {
	m, _, err := call(ctx, g, "reading the MIG mode", func() (mode, nvml.Return) {
		now, pending, ret := device.GetMigMode()
		return mode{now == nvml.DEVICE_MIG_ENABLE, pending == nvml.DEVICE_MIG_ENABLE}, ret
	})
	return m, err
}

// setMode returns the activation status: the mode may be accepted and not be active yet. go-nvml has that first and
// the result second, against its other functions.
func (g *GPU) setMode(ctx context.Context, device nvml.Device, on bool) (activation nvml.Return, took time.Duration,
	err error) {
	want := nvml.DEVICE_MIG_DISABLE
	if on {
		want = nvml.DEVICE_MIG_ENABLE
	}
	return call(ctx, g, "switching MIG mode "+onOff(on), func() (nvml.Return, nvml.Return) {
		return device.SetMigMode(want)
	})
}

// SwitchOn has the GPU in MIG mode. What it was in before is written to a file first, for PutBack. ready is false where
// nothing can be asked of it; the rows say why.
func (g *GPU) SwitchOn(ctx context.Context, file string) (rows []report.Row, ready bool) {
	const what = "MIG mode is switched on"
	began := time.Now()
	row, err := g.switchOn(ctx, file, what)
	if err != nil {
		row = report.Row{What: what, Observed: err.Error(), Result: report.Failed, Details: err.Error()}
	}
	row.Took = time.Since(began)
	if row.Result == report.NotRun {
		return []report.Row{row, {What: "all else on this GPU", Result: report.NotRun, Observed: fmt.Sprintf(
			"reset it while MIG mode is on (nvidia-smi -i %s -mig 1, then --gpu-reset, or a reboot), and run this again",
			g.UUID)}}, false
	}
	return []report.Row{row}, row.Result != report.Failed
}

func (g *GPU) switchOn(ctx context.Context, file, what string) (report.Row, error) {
	device, err := g.device(ctx)
	if err != nil {
		return report.Row{}, err
	}
	before, err := g.mode(ctx, device)
	if err != nil {
		return report.Row{}, err
	}
	if g.off, _, err = call(ctx, g, "reading its profiles", func() ([]sim.MIGProfile, nvml.Return) {
		return mig.Profiles(g.lib, device), nvml.SUCCESS
	}); err != nil {
		return report.Row{}, err
	}
	if err := (record{Library: g.library, UUID: g.UUID, On: before.now}).write(file); err != nil {
		return report.Row{}, err
	}
	row := report.Row{What: what, Granted: mode{true, true}.String(), Observed: "it was on", Result: report.Passed}
	if !before.now {
		row.Observed, row.Result, err = g.turnOn(ctx, device)
	}
	return row, err
}

// turnOn is report.NotRun where the mode waits for a reset.
func (g *GPU) turnOn(ctx context.Context, device nvml.Device) (observed string, result report.Result, err error) {
	activation, _, err := g.setMode(ctx, device, true)
	if err != nil {
		return "", report.Failed, err
	}
	if device, err = g.device(ctx); err != nil {
		return "", report.Failed, err
	}
	after, err := g.mode(ctx, device)
	if err != nil {
		return "", report.Failed, err
	}
	switch {
	case after.now && activation == nvml.SUCCESS:
		result = report.Passed
	case after.pending && (activation == nvml.SUCCESS || activation == nvml.ERROR_RESET_REQUIRED):
		result = report.NotRun
	default:
		return fmt.Sprintf("%s; activation status: %v: end what has the GPU open, such as DCGM, and run this again", after,
			activation), report.Failed, nil
	}
	return fmt.Sprintf("%s; activation status: %v", after, activation), result, nil
}

// List are the instances that the GPU is cut into now, those without a compute instance among them.
func (g *GPU) List(ctx context.Context) ([]gpu.Instance, error) {
	return g.partitions.Instances(ctx, g.UUID)
}

// Destroy destroys a GPU instance, and says with gpu.ErrInstanceInUse where a program has it open.
func (g *GPU) Destroy(ctx context.Context, gi int) error {
	return g.partitions.Destroy(ctx, g.UUID, gi)
}

// clear destroys all instances. There were none before the run.
func (g *GPU) clear(ctx context.Context) error {
	instances, err := g.List(ctx)
	for _, i := range instances {
		err = errors.Join(err, g.Destroy(ctx, i.GI))
	}
	return err
}

// Nodes are the device nodes with which a container can use the instance, and no other: that of the GPU, and those of
// its capabilities (source: NVIDIA's MIG user guide).
func (g *GPU) Nodes(ctx context.Context, i gpu.Instance) ([]string, error) {
	minor, err := g.minor(ctx)
	if err != nil {
		return nil, err
	}
	nodes := []string{fmt.Sprintf("/dev/nvidia%d", minor)}
	for _, path := range []string{capability(minor, i.GI, gpu.NoCI), capability(minor, i.GI, i.CI)} {
		n, err := g.capabilityMinor(path)
		if err != nil {
			return nil, err
		}
		nodes = append(nodes, fmt.Sprintf("/dev/nvidia-caps/nvidia-cap%d", n))
	}
	return nodes, nil
}

// minor may change with the mode.
func (g *GPU) minor(ctx context.Context) (int, error) {
	device, err := g.device(ctx)
	if err != nil {
		return 0, err
	}
	minor, _, err := call(ctx, g, "reading the minor number", device.GetMinorNumber)
	return minor, err
}

// capability is the name of an instance's in mig-minors: of the GPU instance where ci is gpu.NoCI.
func capability(minor, gi, ci int) string {
	if ci == gpu.NoCI {
		return fmt.Sprintf("gpu%d/gi%d/access", minor, gi)
	}
	return fmt.Sprintf("gpu%d/gi%d/ci%d/access", minor, gi, ci)
}

// capabilityMinor is what the kernel module shows of an instance that is there.
func (g *GPU) capabilityMinor(name string) (int, error) {
	of, rest, _ := strings.Cut(name, "/")
	path := filepath.Join(g.root, "proc/driver/nvidia/capabilities", of, "mig", rest)
	content, err := os.ReadFile(path)
	if err != nil {
		return 0, fmt.Errorf("read the capability of a MIG instance: %w", err)
	}
	for line := range strings.Lines(string(content)) {
		var n int
		if _, err := fmt.Sscanf(line, "DeviceFileMinor: %d", &n); err == nil {
			return n, nil
		}
	}
	return 0, fmt.Errorf("read the capability of a MIG instance: %s has no minor number: %q", path, content)
}
