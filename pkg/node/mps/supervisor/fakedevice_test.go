// SPDX-License-Identifier: Apache-2.0

package supervisor

import (
	"context"
	"slices"
	"sync"

	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
)

// fakeDevice is a GPU whose compute mode cannot be set, unless a test says so.
type fakeDevice struct {
	mu       sync.Mutex
	settable bool
	mode     gpu.ComputeMode
	pids     []int
	err      error // of all calls
	// modes are those that were set, in their order.
	modes []gpu.ComputeMode
	// onSet is called before a mode is set.
	onSet func(d *fakeDevice, mode gpu.ComputeMode)
}

func (d *fakeDevice) ComputeMode(context.Context) (gpu.ComputeMode, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.mode, d.err
}

func (d *fakeDevice) SetComputeMode(_ context.Context, mode gpu.ComputeMode) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.err != nil {
		return d.err
	}
	if !d.settable {
		return gpu.ErrComputeModeFixed
	}
	if d.onSet != nil {
		d.onSet(d, mode)
	}
	if mode != d.mode {
		d.modes = append(d.modes, mode)
	}
	d.mode = mode
	return nil
}

func (d *fakeDevice) Processes(context.Context) ([]int, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Clone(d.pids), d.err
}

func (d *fakeDevice) set(change func(d *fakeDevice)) {
	d.mu.Lock()
	defer d.mu.Unlock()
	change(d)
}

func (d *fakeDevice) is() gpu.ComputeMode {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.mode
}

func (d *fakeDevice) was() []gpu.ComputeMode {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Clone(d.modes)
}

// device is the GPU, whose compute mode cannot be set unless it is settable.
func (w *world) device(uuid string) *fakeDevice {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.devices[uuid] == nil {
		w.devices[uuid] = &fakeDevice{}
	}
	return w.devices[uuid]
}
