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
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/gpushare/dra-driver-gpushare/pkg/gpu/bounded"
	gpunvml "github.com/gpushare/dra-driver-gpushare/pkg/gpu/nvml"
)

// callLimit is how long one call may take.
const callLimit = 30 * time.Second

// Mode is whether MIG mode is on, and whether it will be after the next reset.
type Mode struct{ Now, Pending bool }

func (m Mode) String() string {
	return fmt.Sprintf("%s, %s after a reset", onOff(m.Now), onOff(m.Pending))
}

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
	want := nvml.DEVICE_MIG_DISABLE
	if on {
		want = nvml.DEVICE_MIG_ENABLE
	}
	// go-nvml has the activation status first and the result second, against its other functions.
	if activation, err = call(ctx, lib, "switching the MIG mode "+onOff(on), uuid,
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

// readRecord reports also whether there is one.
func readRecord(path string) (r Record, there bool, err error) {
	content, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return Record{}, false, nil
	}
	if err == nil {
		err = json.Unmarshal(content, &r)
	}
	if err != nil {
		return Record{}, false, fmt.Errorf("read which GPU's MIG mode is to be put back: %w", err)
	}
	return r, true, nil
}

// switchPatience is for programs that have just ended, and to which the driver still counts the GPU.
const switchPatience = 15 * time.Second

// PutBack destroys all instances of the GPU that the file is about, switches its MIG mode to what it was, and removes
// the file. Without a file nothing was changed.
func PutBack(ctx context.Context, file string) error {
	r, there, err := readRecord(file)
	if err != nil || !there {
		return err
	}
	if err := r.putBack(ctx); err != nil {
		return fmt.Errorf("MIG mode of GPU %s was %s, and could not be put back: %w: do so by nvidia-smi mig -i %s -dci, "+
			"nvidia-smi mig -i %s -dgi and nvidia-smi -i %s -mig %d", r.UUID, onOff(r.On), err, r.UUID, r.UUID, r.UUID,
			map[bool]int{true: 1}[r.On])
	}
	if err := os.Remove(file); err != nil {
		return fmt.Errorf("MIG mode of GPU %s was put back, and that is not written down: %w", r.UUID, err)
	}
	return nil
}

func (r Record) putBack(ctx context.Context) error {
	lib, err := gpunvml.Open(ctx, gpunvml.OpenOptions{LibraryPath: r.Library})
	if err != nil {
		return err
	}
	partitions := gpunvml.NewPartitions(gpunvml.OpenOptions{LibraryPath: r.Library})
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
