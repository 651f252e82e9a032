// SPDX-License-Identifier: Apache-2.0

// Package modes has the modes of GPUs that a run changes: it refuses a GPU that must not be cut into MIG instances,
// switches the MIG mode of one whose owner has allowed it, and puts back what was there before.
package modes

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/gpushare/dra-driver-gpushare/internal/statefile"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu/bounded"
	gpunvml "github.com/gpushare/dra-driver-gpushare/pkg/gpu/nvml"
)

// flag allows it.
const flag = "--may-change-mig"

// choose finds the GPU that has this index or UUID, and refuses what must not be cut: above all where somebody else's
// instances are.
func choose(asked string, m *gpu.Machine) (gpu.GPU, error) {
	all := m.All()
	at := slices.IndexFunc(all, func(g gpu.GPU) bool { return g.UUID == asked || fmt.Sprint(g.Index) == asked })
	if at < 0 {
		var names []string
		for _, g := range all {
			names = append(names, fmt.Sprintf("%d (%s, %s)", g.Index, g.ProductName, g.UUID))
		}
		return gpu.GPU{}, fmt.Errorf("%s %s: the driver lists no GPU %s that can be used, only %s", flag, asked, asked,
			strings.Join(names, ", "))
	}
	g := all[at]
	refuse := func(format string, args ...any) (gpu.GPU, error) {
		return gpu.GPU{}, fmt.Errorf("%s: GPU %d (%s) %s", flag, g.Index, g.ProductName, fmt.Sprintf(format, args...))
	}
	switch mode := g.MIG; {
	case !mode.Capable:
		return refuse("has no MIG mode: name another GPU, or run without this option")
	case mode.Enabled != mode.Pending:
		return refuse("waits for a reset, after which its MIG mode is %s, and now it is %s: reset it (nvidia-smi -i %s "+
			"--gpu-reset) first", onOff(mode.Pending), onOff(mode.Enabled), g.UUID)
	}
	for _, p := range m.Partitioned {
		switch {
		case p.UUID != g.UUID:
			// The driver's setting is for all GPUs of a node: it would cut that one, too.
			return refuse("can be cut only where no other is in MIG mode, and GPU %d is in MIG mode, too: switch that one's "+
				"off (nvidia-smi -i %s -mig 0) first", p.Index, p.UUID)
		case len(p.Instances) > 0:
			return refuse("has MIG instances already (%d), which somebody else has made: destroy them (nvidia-smi mig -i %s "+
				"-dci; nvidia-smi mig -i %s -dgi), or name another GPU", len(p.Instances), g.UUID, g.UUID)
		}
	}
	return g, nil
}

func onOff(on bool) string {
	if on {
		return "on"
	}
	return "off"
}

// Tell puts a MIG mode into words.
func Tell(m gpu.MIGMode) string {
	if !m.Capable {
		return "none"
	}
	return fmt.Sprintf("%s, %s after a reset", onOff(m.Enabled), onOff(m.Pending))
}

// callLimit is how long one call may take.
const callLimit = 30 * time.Second

// ask makes calls about the GPU with the UUID. Handles may not outlive a change of its MIG mode.
func ask[T any](ctx context.Context, lib nvml.Interface, what, uuid string,
	do func(nvml.Device) (T, nvml.Return)) (T, error) {
	return bounded.Try(ctx, bounded.New("NVML", callLimit), what+" of GPU "+uuid, func() (got T, err error) {
		device, ret := lib.DeviceGetHandleByUUID(uuid)
		if ret == nvml.SUCCESS {
			got, ret = do(device)
		}
		if ret != nvml.SUCCESS {
			return got, ret
		}
		return got, nil
	})
}

// MIG reads the MIG mode of the GPU with the UUID, which has one.
func MIG(ctx context.Context, lib nvml.Interface, uuid string) (gpu.MIGMode, error) {
	return ask(ctx, lib, "reading the MIG mode", uuid, func(device nvml.Device) (gpu.MIGMode, nvml.Return) {
		now, pending, ret := device.GetMigMode()
		return gpu.MIGMode{Capable: true, Enabled: now == nvml.DEVICE_MIG_ENABLE,
			Pending: pending == nvml.DEVICE_MIG_ENABLE}, ret
	})
}

// SetMIG switches the mode, and returns the activation status and what the mode is then: it may be accepted and not be
// active yet.
func SetMIG(ctx context.Context, lib nvml.Interface, uuid string, on bool) (activation nvml.Return, after gpu.MIGMode,
	err error) {
	want := nvml.DEVICE_MIG_DISABLE
	if on {
		want = nvml.DEVICE_MIG_ENABLE
	}
	// go-nvml has the activation status first and the result second, against its other functions.
	if activation, err = ask(ctx, lib, "switching the MIG mode "+onOff(on), uuid,
		func(device nvml.Device) (nvml.Return, nvml.Return) { return device.SetMigMode(want) }); err != nil {
		return activation, after, err
	}
	after, err = MIG(ctx, lib, uuid)
	return activation, after, err
}

// Clear destroys all instances of a GPU.
func Clear(ctx context.Context, partitions *gpunvml.Partitions, uuid string) error {
	instances, err := partitions.Instances(ctx, uuid)
	for _, i := range instances {
		err = errors.Join(err, partitions.Destroy(ctx, uuid, i.GI))
	}
	return err
}

// Record has the modes that GPUs were found in, by UUID. It is written before anything is changed: also `./run down`,
// after a kill, finds it.
type Record struct {
	// Driver is where NVML is.
	Driver gpunvml.OpenOptions
	// Compute has those GPUs that tell their compute mode: that of others is not changed either.
	Compute map[string]gpu.ComputeMode
	MIG     map[string]gpu.MIGMode
	// Cut is the GPU that may be cut into MIG instances, and had none; empty for none, and when it is put back.
	Cut string
}

// Read returns the modes that a machine's GPUs are in, by the reader that has found them last.
func Read(ctx context.Context, driver gpunvml.OpenOptions, r *gpunvml.Reader, m *gpu.Machine) Record {
	found := Record{Driver: driver, Compute: map[string]gpu.ComputeMode{}, MIG: map[string]gpu.MIGMode{}}
	for _, g := range m.All() {
		found.MIG[g.UUID] = g.MIG
		device, err := r.Device(g.UUID)
		if err != nil {
			continue
		}
		if mode, err := device.ComputeMode(ctx); err == nil {
			found.Compute[g.UUID] = mode
		}
	}
	return found
}

// MayCut has the GPU with this index or UUID as the one that may be cut into MIG instances. It refuses a GPU that must
// not be cut, and a driver that is too old: go-nvml ends a program that calls what the library lacks.
func (r *Record) MayCut(asked string, lib nvml.Interface, m *gpu.Machine) error {
	chosen, err := choose(asked, m)
	if err != nil {
		return err
	}
	// A library with the newest of the functions that a run calls has the others.
	const newest = "nvmlDeviceCreateGpuInstanceWithPlacement"
	if err := lib.Extensions().LookupSymbol(newest); err != nil {
		return fmt.Errorf("%s: the driver's NVML has no %s: install a newer driver, or run without this option: %w", flag,
			newest, err)
	}
	r.Cut = chosen.UUID
	return nil
}

// In keeps a record in a file.
func In(path string) statefile.File[Record] {
	return statefile.File[Record]{Path: path, Synced: true}
}

// PutBack puts the GPUs back into the modes of the record in a file, and tells what that took. Without a file nothing
// was changed.
func PutBack(ctx context.Context, file string) (told []string, err error) {
	r, found, err := In(file).Load()
	if err != nil {
		return nil, fmt.Errorf("read which modes the GPUs were found in: %w", err)
	}
	if !found {
		return nil, nil
	}
	lib, err := gpunvml.Open(ctx, r.Driver)
	if err != nil {
		return nil, fmt.Errorf("put the modes of the GPUs back: %w", err)
	}
	err = r.putBackMIG(ctx, lib)
	told, computeErr := r.putBackCompute(ctx, lib)
	if ret := lib.Shutdown(); ret != nvml.SUCCESS {
		err = errors.Join(err, fmt.Errorf("close NVML: %w", ret))
	}
	if err = errors.Join(err, computeErr); err != nil {
		return told, err
	}
	if len(told) == 0 {
		told = []string{"compute and MIG modes are as they were found"}
	}
	r.Cut = ""
	return told, In(file).Store(r)
}

// switchPatience is for programs that have just ended, and to which the driver still counts the GPU.
const switchPatience = 15 * time.Second

func (r Record) putBackMIG(ctx context.Context, lib nvml.Interface) error {
	if r.Cut == "" {
		return nil
	}
	partitions, was := gpunvml.NewPartitions(r.Driver), r.MIG[r.Cut].Enabled
	var last error
	if wait.PollUntilContextTimeout(ctx, time.Second, switchPatience, true, func(ctx context.Context) (bool, error) {
		last = errors.Join(Clear(ctx, partitions, r.Cut), switchBack(ctx, lib, r.Cut, was))
		return last == nil, nil
	}) == nil {
		return nil
	}
	number := map[bool]int{true: 1}[was]
	return fmt.Errorf("MIG mode of GPU %s was %s, and could not be put back: %w: do so by nvidia-smi mig -i %s -dci, "+
		"nvidia-smi mig -i %s -dgi and nvidia-smi -i %s -mig %d", r.Cut, onOff(was), last, r.Cut, r.Cut, r.Cut, number)
}

// switchBack is also for a mode that only waited for a reset.
func switchBack(ctx context.Context, lib nvml.Interface, uuid string, on bool) error {
	want := gpu.MIGMode{Capable: true, Enabled: on, Pending: on}
	if m, err := MIG(ctx, lib, uuid); err != nil || m == want {
		return err
	}
	activation, m, err := SetMIG(ctx, lib, uuid, on)
	if err == nil && m != want {
		err = fmt.Errorf("it is %s, activation status %w", Tell(m), activation)
	}
	return err
}

// putBackCompute sets the compute modes that are no longer what they were, and looks whether MIG modes are.
func (r Record) putBackCompute(ctx context.Context, lib nvml.Interface) (told []string, err error) {
	reader := gpunvml.NewReader(lib, gpunvml.Options{SysFS: r.Driver.SysFS})
	m, err := reader.Read(ctx)
	if err != nil {
		return nil, fmt.Errorf("read which modes the GPUs are in: %w", err)
	}
	now := Read(ctx, r.Driver, reader, m)
	for uuid, mode := range now.Compute {
		before, known := r.Compute[uuid]
		if !known || mode == before {
			continue
		}
		device, deviceErr := reader.Device(uuid)
		if deviceErr == nil {
			deviceErr = device.SetComputeMode(ctx, before)
		}
		if deviceErr != nil {
			err = errors.Join(err, fmt.Errorf("put the compute mode of GPU %s back from %s to %s: %w", uuid, mode, before,
				deviceErr))
			continue
		}
		told = append(told, fmt.Sprintf("GPU %s was in compute mode %s and is put back to %s", uuid, mode, before))
	}
	for uuid, mode := range now.MIG {
		if before, known := r.MIG[uuid]; known && mode != before {
			told = append(told, fmt.Sprintf("MIG mode of GPU %s was %s and is %s", uuid, Tell(before), Tell(mode)))
		}
	}
	return told, err
}
