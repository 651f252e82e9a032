// SPDX-License-Identifier: Apache-2.0

package nvml

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu/bounded"
)

// deviceTimeout is how long a call on one GPU may take that others wait for. It takes
// milliseconds.
const deviceTimeout = 3 * time.Second

// Device is one GPU, for what is asked and set beside the readings of all. It is used by
// one goroutine at a time, which need not be the Reader's.
type Device struct {
	handle nvml.Device
	calls  *bounded.Calls
	// modes and processes say whether the library has the functions.
	modes, processes bool
}

// Device returns a GPU of the last reading. It is good for as long as the library stays
// initialised.
func (r *Reader) Device(uuid string) (*Device, error) {
	for _, c := range r.gpus {
		if c.gpu.UUID != uuid || c.handle == nil {
			continue
		}
		if r.apart == nil {
			r.apart = map[string]*bounded.Calls{}
		}
		if r.apart[uuid] == nil {
			r.apart[uuid] = bounded.New("NVML", deviceTimeout)
		}
		return &Device{
			handle: c.handle, calls: r.apart[uuid],
			modes:     r.has("nvmlDeviceGetComputeMode") && r.has("nvmlDeviceSetComputeMode"),
			processes: r.has("nvmlDeviceGetComputeRunningProcesses"),
		}, nil
	}
	return nil, fmt.Errorf("GPU %s was not there when the GPUs were read last", uuid)
}

// ComputeMode reads the GPU's compute mode. It is gpu.ErrComputeModeFixed where there
// is none.
func (d *Device) ComputeMode(ctx context.Context) (gpu.ComputeMode, error) {
	if !d.modes {
		return 0, gpu.ErrComputeModeFixed
	}
	mode, err := ask(ctx, d.calls, "reading the compute mode", d.handle.GetComputeMode)
	return gpu.ComputeMode(mode), fixed(err)
}

// SetComputeMode sets the GPU's compute mode. It is gpu.ErrComputeModeFixed where it
// cannot be set.
func (d *Device) SetComputeMode(ctx context.Context, mode gpu.ComputeMode) error {
	if !d.modes {
		return gpu.ErrComputeModeFixed
	}
	return fixed(do(ctx, d.calls, fmt.Sprintf("setting the compute mode %s", mode), func() nvml.Return {
		return d.handle.SetComputeMode(nvml.ComputeMode(mode))
	}))
}

func fixed(err error) error {
	if unsupported(err) || errors.Is(err, nvml.ERROR_NO_PERMISSION) {
		return fmt.Errorf("%w: %w", gpu.ErrComputeModeFixed, err)
	}
	return err
}

// Processes are the processes that have contexts on the GPU, by their numbers in the
// host's PID namespace, as far as the driver tells.
func (d *Device) Processes(ctx context.Context) ([]int, error) {
	if !d.processes {
		return nil, nil
	}
	infos, err := ask(ctx, d.calls, "listing the processes on the GPU", d.handle.GetComputeRunningProcesses)
	if unsupported(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	pids := make([]int, 0, len(infos))
	for _, info := range infos {
		pids = append(pids, int(info.Pid))
	}
	return pids, nil
}
