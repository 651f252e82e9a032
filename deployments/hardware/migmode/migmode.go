// SPDX-License-Identifier: Apache-2.0

// Package migmode switches the MIG mode of one GPU, whose owner has allowed it, and puts back what was there before.
package migmode

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu/bounded"
	gpunvml "github.com/gpushare/dra-driver-gpushare/pkg/gpu/nvml"
)

// flag allows it.
const flag = "--may-change-mig"

// Choose finds the GPU that has this index or UUID, and refuses what must not be cut: above all where somebody else's
// instances are.
func Choose(asked string, m *gpu.Machine) (gpu.GPU, error) {
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
			"--gpu-reset) first", OnOff(mode.Pending), OnOff(mode.Enabled), g.UUID)
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

// OnOff is how a mode is called.
func OnOff(on bool) string {
	if on {
		return "on"
	}
	return "off"
}

// Has refuses a driver that is too old: go-nvml ends a program that calls what the library lacks. A library with the
// newest of the functions that a run calls has the others.
func Has(lib nvml.Interface) error {
	const newest = "nvmlDeviceCreateGpuInstanceWithPlacement"
	if err := lib.Extensions().LookupSymbol(newest); err != nil {
		return fmt.Errorf("%s: the driver's NVML has no %s: install a newer driver, or run without this option: %w", flag,
			newest, err)
	}
	return nil
}

// Mode is whether MIG mode is on, and whether it will be after the next reset.
type Mode struct{ Now, Pending bool }

func (m Mode) String() string {
	return fmt.Sprintf("%s, %s after a reset", OnOff(m.Now), OnOff(m.Pending))
}

// callLimit is how long one call may take.
const callLimit = 30 * time.Second

// call makes calls about the GPU with the UUID. Handles may not outlive a change of the mode.
func call[T any](ctx context.Context, lib nvml.Interface, what, uuid string,
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

// Read returns the mode of the GPU with the UUID.
func Read(ctx context.Context, lib nvml.Interface, uuid string) (Mode, error) {
	return call(ctx, lib, "reading the MIG mode", uuid, func(device nvml.Device) (Mode, nvml.Return) {
		now, pending, ret := device.GetMigMode()
		return Mode{now == nvml.DEVICE_MIG_ENABLE, pending == nvml.DEVICE_MIG_ENABLE}, ret
	})
}

// Set switches the mode, and returns the activation status and what the mode is then: it may be accepted and not be
// active yet.
func Set(ctx context.Context, lib nvml.Interface, uuid string, on bool) (activation nvml.Return, after Mode,
	err error) {
	want := map[bool]int{true: nvml.DEVICE_MIG_ENABLE, false: nvml.DEVICE_MIG_DISABLE}[on]
	// go-nvml has the activation status first and the result second, against its other functions.
	if activation, err = call(ctx, lib, "switching the MIG mode "+OnOff(on), uuid,
		func(device nvml.Device) (nvml.Return, nvml.Return) { return device.SetMigMode(want) }); err != nil {
		return activation, Mode{}, err
	}
	after, err = Read(ctx, lib, uuid)
	return activation, after, err
}

// Record says on disk what is to be put back, before anything is changed: also `./run down`, after a kill, finds it.
// The GPU had no instances before.
type Record struct {
	// Library is the driver's NVML.
	Library string `json:"library"`
	UUID    string `json:"uuid"`
	// On is the MIG mode that the GPU was in.
	On bool `json:"migMode"`
}

// Write writes the record.
func (r Record) Write(path string) error {
	content, err := json.Marshal(r)
	if err == nil {
		err = os.WriteFile(path, content, 0o600)
	}
	if err != nil {
		return fmt.Errorf("write down the MIG mode of GPU %s, which is not changed therefore: %w", r.UUID, err)
	}
	return nil
}

// switchPatience is for programs that have just ended, and to which the driver still counts the GPU.
const switchPatience = 15 * time.Second

// PutBack destroys all instances of the GPU that the file is about, switches its MIG mode to what it was, and removes
// the file. Without a file nothing was changed.
func PutBack(ctx context.Context, file string) error {
	content, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	var r Record
	if err == nil {
		err = json.Unmarshal(content, &r)
	}
	if err != nil {
		return fmt.Errorf("read which GPU's MIG mode is to be put back: %w", err)
	}
	if err := r.putBack(ctx); err != nil {
		return fmt.Errorf("MIG mode of GPU %s was %s, and could not be put back: %w: do so by nvidia-smi mig -i %s -dci, "+
			"nvidia-smi mig -i %s -dgi and nvidia-smi -i %s -mig %d", r.UUID, OnOff(r.On), err, r.UUID, r.UUID, r.UUID,
			map[bool]int{true: 1}[r.On])
	}
	if err := os.Remove(file); err != nil {
		return fmt.Errorf("MIG mode of GPU %s was put back, and that is not written down: %w", r.UUID, err)
	}
	return nil
}

func (r Record) putBack(ctx context.Context) error {
	options := gpunvml.OpenOptions{LibraryPath: r.Library}
	lib, err := gpunvml.Open(ctx, options)
	if err != nil {
		return err
	}
	partitions := gpunvml.NewPartitions(options)
	var last error
	if wait.PollUntilContextTimeout(ctx, time.Second, switchPatience, true, func(ctx context.Context) (bool, error) {
		last = errors.Join(Clear(ctx, partitions, r.UUID), r.switchBack(ctx, lib))
		return last == nil, nil
	}) != nil {
		return last
	}
	return nil
}

// Clear destroys all instances of a GPU.
func Clear(ctx context.Context, partitions *gpunvml.Partitions, uuid string) error {
	instances, err := partitions.Instances(ctx, uuid)
	for _, i := range instances {
		err = errors.Join(err, partitions.Destroy(ctx, uuid, i.GI))
	}
	return err
}

// switchBack is also for a mode that only waited for a reset.
func (r Record) switchBack(ctx context.Context, lib nvml.Interface) error {
	want := Mode{r.On, r.On}
	if m, err := Read(ctx, lib, r.UUID); err != nil || m == want {
		return err
	}
	activation, m, err := Set(ctx, lib, r.UUID, r.On)
	if err == nil && m != want {
		err = fmt.Errorf("it is %s, activation status %w", m, activation)
	}
	return err
}
