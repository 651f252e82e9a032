// SPDX-License-Identifier: Apache-2.0

package nvml

import (
	"errors"
	"testing"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
)

// lacking returns a library that has all functions but this one, if any.
func lacking(function string) *mock.Interface {
	return &mock.Interface{ExtensionsFunc: func() nvml.ExtendedInterface {
		return &mock.ExtendedInterface{LookupSymbolFunc: func(name string) error {
			if name == function {
				return errors.New("undefined symbol: " + name)
			}
			return nil
		}}
	}}
}

// known returns a GPU that a Reader has read before.
func known(index int, uuid string, handle nvml.Device) *cachedGPU {
	c := newGPU(time.Minute)
	c.gpu, c.handle = gpu.GPU{Index: index, UUID: uuid}, handle
	return c
}

// deviceOf returns the GPU of a library that lacks this function, if any.
func deviceOf(t *testing.T, lacks string, d *mock.Device) *Device {
	t.Helper()
	r := NewReader(lacking(lacks), Options{})
	r.gpus = []*cachedGPU{newGPU(time.Minute), known(0, "GPU-a", d)}
	device, err := r.Device("GPU-a")
	expect.NoError(t, err)
	if _, err := r.Device("GPU-b"); err == nil {
		t.Error("a GPU that is not there was found")
	}
	return device
}

func TestComputeMode(t *testing.T) {
	for name, tc := range map[string]struct {
		lacks string
		ret   nvml.Return
		fixed bool
	}{
		"set":                    {ret: nvml.SUCCESS},
		"not supported":          {ret: nvml.ERROR_NOT_SUPPORTED, fixed: true},
		"not permitted":          {ret: nvml.ERROR_NO_PERMISSION, fixed: true},
		"no function to set it":  {lacks: "nvmlDeviceSetComputeMode", fixed: true},
		"no function to read it": {lacks: "nvmlDeviceGetComputeMode", fixed: true},
		"lost":                   {ret: nvml.ERROR_GPU_IS_LOST},
	} {
		t.Run(name, func(t *testing.T) {
			var set nvml.ComputeMode
			d := deviceOf(t, tc.lacks, &mock.Device{
				SetComputeModeFunc: func(mode nvml.ComputeMode) nvml.Return { set = mode; return tc.ret },
				GetComputeModeFunc: func() (nvml.ComputeMode, nvml.Return) { return nvml.COMPUTEMODE_PROHIBITED, nvml.SUCCESS },
			})
			err := d.SetComputeMode(t.Context(), gpu.ComputeExclusiveProcess)
			fails := tc.lacks != "" || tc.ret != nvml.SUCCESS
			if errors.Is(err, gpu.ErrComputeModeFixed) != tc.fixed || (err != nil) != fails {
				t.Errorf("set: %v", err)
			}
			if tc.lacks != "" {
				return
			}
			expect.Equal(t, nvml.COMPUTEMODE_EXCLUSIVE_PROCESS, set, "NVML was given")
			if got, err := d.ComputeMode(t.Context()); err != nil || got != gpu.ComputeProhibited {
				t.Errorf("read: %s, %v", got, err)
			}
		})
	}
}

func TestProcesses(t *testing.T) {
	for name, tc := range map[string]struct {
		lacks string
		ret   nvml.Return
		want  []int
		fails bool
	}{
		"two":             {want: []int{7, 9}},
		"not supported":   {ret: nvml.ERROR_NOT_SUPPORTED},
		"no function":     {lacks: "nvmlDeviceGetComputeRunningProcesses"},
		"does not answer": {ret: nvml.ERROR_UNKNOWN, fails: true},
	} {
		t.Run(name, func(t *testing.T) {
			d := deviceOf(t, tc.lacks, &mock.Device{
				GetComputeRunningProcessesFunc: func() ([]nvml.ProcessInfo, nvml.Return) {
					return []nvml.ProcessInfo{{Pid: 7}, {Pid: 9}}, tc.ret
				},
			})
			got, err := d.Processes(t.Context())
			if diff := expect.Diff(tc.want, got); diff != nil || (err != nil) != tc.fails {
				t.Errorf("%v %s", err, diff)
			}
		})
	}
}
