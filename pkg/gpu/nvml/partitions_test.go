// SPDX-License-Identifier: Apache-2.0

package nvml

import (
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu/bounded"
)

// migDriver is a driver of GPUs in MIG mode, GPU-0 and so on, with an instance each.
type migDriver struct {
	count int
	// open and uuid are what opening a GPU, and asking it for its UUID, come to; one that hangs answers when that is
	// closed.
	open, uuid map[int]nvml.Return
	hangs      map[int]chan struct{}
	opened     atomic.Int32
}

func (d *migDriver) partitions() *Partitions {
	lib := &mock.Interface{
		ExtensionsFunc:     lacking("nvmlDeviceGetGpuInstanceProfileInfoV").ExtensionsFunc,
		DeviceGetCountFunc: func() (int, nvml.Return) { return d.count, nvml.SUCCESS },
		DeviceGetHandleByIndexFunc: func(i int) (nvml.Device, nvml.Return) {
			d.opened.Add(1)
			if hangs := d.hangs[i]; hangs != nil {
				<-hangs
			}
			return d.device(i), d.open[i]
		},
		// As NVML documents it.
		DeviceGetHandleByUUIDFunc: func(uuid string) (nvml.Device, nvml.Return) {
			found, ret := nvml.Device(nil), nvml.ERROR_NOT_FOUND
			for i := range d.count {
				switch {
				case d.hangs[i] != nil:
					<-d.hangs[i]
				case d.open[i] == nvml.ERROR_GPU_IS_LOST, d.uuid[i] == nvml.ERROR_GPU_IS_LOST:
					return nil, nvml.ERROR_GPU_IS_LOST
				case fmt.Sprint("GPU-", i) == uuid:
					found, ret = d.device(i), nvml.SUCCESS
				}
			}
			return found, ret
		},
	}
	return &Partitions{lib: lib, reader: NewReader(lib, Options{Profiles: true}), gpus: map[string]*partitionedGPU{}}
}

func (d *migDriver) device(i int) nvml.Device {
	instance := &mock.GpuInstance{
		GetInfoFunc: func() (nvml.GpuInstanceInfo, nvml.Return) {
			return nvml.GpuInstanceInfo{Id: uint32(i), ProfileId: 19}, nvml.SUCCESS
		},
		GetComputeInstanceProfileInfoFunc: func(int, int) (nvml.ComputeInstanceProfileInfo, nvml.Return) {
			return nvml.ComputeInstanceProfileInfo{}, nvml.ERROR_NOT_SUPPORTED
		},
	}
	return &mock.Device{
		GetUUIDFunc:    func() (string, nvml.Return) { return fmt.Sprint("GPU-", i), d.uuid[i] },
		GetPciInfoFunc: func() (nvml.PciInfo, nvml.Return) { return nvml.PciInfo{Bus: uint32(i)}, nvml.SUCCESS },
		GetMigModeFunc: func() (int, int, nvml.Return) { return 1, 1, nvml.SUCCESS },
		GetGpuInstanceProfileInfoFunc: func(profile int) (nvml.GpuInstanceProfileInfo, nvml.Return) {
			if profile > 0 {
				return nvml.GpuInstanceProfileInfo{}, nvml.ERROR_INVALID_ARGUMENT
			}
			return nvml.GpuInstanceProfileInfo{Id: 19, SliceCount: 1, InstanceCount: 1}, nvml.SUCCESS
		},
		GetGpuInstancePossiblePlacementsFunc: func(*nvml.GpuInstanceProfileInfo) ([]nvml.GpuInstancePlacement, nvml.Return) {
			return []nvml.GpuInstancePlacement{{Size: 1}}, nvml.SUCCESS
		},
		GetGpuInstancesFunc: func(*nvml.GpuInstanceProfileInfo) ([]nvml.GpuInstance, nvml.Return) {
			return []nvml.GpuInstance{instance}, nvml.SUCCESS
		},
	}
}

// The instances of a GPU are those that it has, whatever becomes of other GPUs. Only one that is known to be lost, or
// not there, has none.
func TestInstancesBesideSickGPUs(t *testing.T) {
	const lost, mute = nvml.ERROR_GPU_IS_LOST, nvml.ERROR_UNKNOWN
	type returns = map[int]nvml.Return
	hung := bounded.ErrHung
	for name, tc := range map[string]struct {
		open, uuid returns
		hangs      int
		of         string
		want       int
		// fails is the error of Instances, made that of making one, where there are none.
		fails, made error
	}{
		"all are well":                    {of: "GPU-0", want: 1},
		"one before it is lost":           {open: returns{0: lost}, of: "GPU-2", want: 1},
		"one after it is lost":            {uuid: returns{2: lost}, of: "GPU-0", want: 1},
		"one before it cannot be read":    {uuid: returns{0: mute}, of: "GPU-2", want: 1},
		"one before it hangs":             {hangs: 1, of: "GPU-2", want: 1},
		"it is lost":                      {open: returns{1: lost}, of: "GPU-1", made: lost},
		"it and another one are lost":     {uuid: returns{0: lost, 1: lost}, of: "GPU-1", made: lost},
		"it is not there":                 {of: "GPU-7", made: nvml.ERROR_NOT_FOUND},
		"it is not there, one is lost":    {open: returns{1: lost}, of: "GPU-7", made: lost},
		"it cannot be read, one is lost":  {uuid: returns{0: mute, 1: lost}, of: "GPU-0", fails: mute, made: mute},
		"it hangs":                        {hangs: 1, of: "GPU-1", fails: hung, made: hung},
		"it hangs, one after it is lost":  {hangs: 1, open: returns{2: lost}, of: "GPU-1", fails: hung, made: hung},
		"it hangs, one before it is lost": {hangs: 1, open: returns{0: lost}, of: "GPU-1", fails: hung, made: hung},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				d := &migDriver{count: 3, open: tc.open, uuid: tc.uuid, hangs: map[int]chan struct{}{}}
				if tc.hangs > 0 {
					d.hangs[tc.hangs] = make(chan struct{})
					defer close(d.hangs[tc.hangs])
				}
				p := d.partitions()
				got, err := p.Instances(t.Context(), tc.of)
				if len(got) != tc.want || !errors.Is(err, tc.fails) {
					t.Errorf("%d instances, %v; want %d, %v", len(got), err, tc.want, tc.fails)
				}
				if tc.want > 0 {
					return
				}
				_, err = p.MakeGPUInstance(t.Context(), tc.of, gpu.Place{ProfileID: 19, Size: 1})
				expect.ErrorIs(t, err, tc.made)
			})
		})
	}
}

// A GPU that was found is not looked for again, one that could not be is until it answers; one that hangs is not asked
// meanwhile.
func TestGPUsAreFoundWhenTheyAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hangs := make(chan struct{})
		d := &migDriver{count: 3, open: map[int]nvml.Return{1: nvml.ERROR_GPU_IS_LOST},
			hangs: map[int]chan struct{}{2: hangs}}
		p := d.partitions()
		look := func(of string, want, opened int) {
			t.Helper()
			d.opened.Store(0)
			got, _ := p.Instances(t.Context(), of)
			if n := int(d.opened.Load()); len(got) != want || n != opened {
				t.Errorf("%s: %d instances, %d GPUs opened; want %d, %d", of, len(got), n, want, opened)
			}
		}
		look("GPU-0", 1, 3)
		look("GPU-0", 1, 0)
		look("GPU-1", 0, 1)
		look("GPU-2", 0, 1)
		close(hangs)
		synctest.Wait()
		d.open = nil
		look("GPU-2", 1, 2)
		look("GPU-1", 1, 0)
	})
}
