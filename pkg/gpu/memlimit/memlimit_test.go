// SPDX-License-Identifier: Apache-2.0

package memlimit

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
)

const dmemLine = "nvidia/00000000:02:00.0/vidmem 17179869184\n"

// The region's name is limits.md's (§6), the addresses are sysfs' and NVML's.
func TestCountedByDMem(t *testing.T) {
	for name, tc := range map[string]struct {
		capacity, address string
		want              bool
	}{
		"the GPU":           {dmemLine, "0000:02:00.0", true},
		"another GPU":       {dmemLine, "0000:12:00.0", false},
		"another domain":    {dmemLine, "0001:02:00.0", false},
		"among others":      {"drm/0000:02:00.0/vram0 5\n" + dmemLine, "0000:02:00.0", true},
		"another vendor's":  {"drm/0000:02:00.0/vram0 5\n", "0000:02:00.0", false},
		"a large domain":    {"nvidia/00010000:e3:00.0/vidmem 5\n", "10000:E3:00.0", true},
		"none":              {"", "0000:02:00.0", false},
		"nothing to be had": {"nvidia", "", false},
	} {
		expect.Equal(t, tc.want, CountedByDMem([]byte(tc.capacity), tc.address), "%s", name)
	}
}

func FuzzCounts(f *testing.F) {
	f.Add([]byte(dmemLine), "0000:02:00.0")
	f.Fuzz(func(t *testing.T, capacity []byte, address string) {
		if CountedByDMem(capacity, address) && !strings.Contains(string(capacity), "nvidia/") {
			t.Errorf("%q: no line is NVIDIA's", capacity)
		}
	})
}

// library is a driver of these GPUs, nil being one that is lost, that has the symbols but for some.
func library(devices []nvml.Device, missing ...string) *mock.Interface {
	lib := &mock.Interface{
		InitFunc:                   func() nvml.Return { return nvml.SUCCESS },
		ShutdownFunc:               func() nvml.Return { return nvml.SUCCESS },
		SystemGetDriverVersionFunc: func() (string, nvml.Return) { return "580.159.04", nvml.SUCCESS },
		DeviceGetCountFunc:         func() (int, nvml.Return) { return len(devices), nvml.SUCCESS },
		DeviceGetHandleByIndexFunc: func(i int) (nvml.Device, nvml.Return) {
			if devices[i] == nil {
				return nil, nvml.ERROR_GPU_IS_LOST
			}
			return devices[i], nvml.SUCCESS
		},
		// As NVML documents it.
		DeviceGetHandleByUUIDFunc: func(uuid string) (nvml.Device, nvml.Return) {
			found, ret := nvml.Device(nil), nvml.ERROR_NOT_FOUND
			for _, d := range devices {
				if d == nil {
					return nil, nvml.ERROR_GPU_IS_LOST
				}
				told, asked := d.GetUUID()
				if asked == nvml.ERROR_GPU_IS_LOST {
					return nil, asked
				}
				if asked == nvml.SUCCESS && told == uuid {
					found, ret = d, nvml.SUCCESS
				}
			}
			return found, ret
		},
	}
	lib.ExtensionsFunc = func() nvml.ExtendedInterface {
		return &mock.ExtendedInterface{LookupSymbolFunc: func(name string) error {
			if slices.Contains(missing, name) {
				return errors.New("undefined symbol: " + name)
			}
			return nil
		}}
	}
	return lib
}

// named is a GPU without MIG, and what asking it for its UUID comes to.
func named(uuid string, ret nvml.Return) *mock.Device {
	return &mock.Device{
		GetUUIDFunc:    func() (string, nvml.Return) { return uuid, ret },
		GetMigModeFunc: func() (int, int, nvml.Return) { return 0, 0, nvml.ERROR_NOT_SUPPORTED },
	}
}

// Another GPU that is lost, or cannot be read, keeps none from being found.
func TestGPU(t *testing.T) {
	lost, mute := nvml.ERROR_GPU_IS_LOST, nvml.ERROR_UNKNOWN
	a, b := named("GPU-a", nvml.SUCCESS), named("GPU-b", nvml.SUCCESS)
	for name, tc := range map[string]struct {
		gpus  []nvml.Device
		fails error
	}{
		"all are well":                   {[]nvml.Device{a, b}, nil},
		"one before it is lost":          {[]nvml.Device{nil, b, a}, nil},
		"one after it is lost":           {[]nvml.Device{b, a, nil}, nil},
		"one is lost when it is asked":   {[]nvml.Device{named("", lost), a}, nil},
		"one cannot be read":             {[]nvml.Device{named("", mute), a}, nil},
		"none is it":                     {[]nvml.Device{b}, nvml.ERROR_NOT_FOUND},
		"it may be the one that is lost": {[]nvml.Device{nil, b}, lost},
		"it may be one that is not read": {[]nvml.Device{b, named("", mute)}, mute},
	} {
		t.Run(name, func(t *testing.T) {
			l, err := opened(library(tc.gpus), "/lib")
			expect.NoError(t, err)
			got, err := l.GPU("GPU-a", 0)
			if !errors.Is(err, tc.fails) || (got.handle == a) != (tc.fails == nil) {
				t.Errorf("found: %t, %v; want %v", got.handle == a, err, tc.fails)
			}
		})
	}
}

// A GPU that hangs keeps none from being found, and costs one call, however often others are looked for. The library
// is not shut down under that call.
func TestGPUBesideOneThatHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		hanging, a, b := named("GPU-0", nvml.SUCCESS), named("GPU-a", nvml.SUCCESS), named("GPU-b", nvml.SUCCESS)
		hanging.GetUUIDFunc = func() (string, nvml.Return) { <-release; return "GPU-0", nvml.SUCCESS }
		lib := library([]nvml.Device{hanging, a, b})
		l, err := opened(lib, "/lib")
		expect.NoError(t, err)
		// Where it is looked for first it is found without that another is asked.
		if got, err := l.GPU("GPU-a", 1); err != nil || got.handle != a || len(lib.DeviceGetHandleByIndexCalls()) != 1 {
			t.Fatalf("found: %t, %v, asked %d", got.handle == a, err, len(lib.DeviceGetHandleByIndexCalls()))
		}
		for range 3 {
			for uuid, want := range map[string]nvml.Device{"GPU-a": a, "GPU-b": b} {
				if got, err := l.GPU(uuid, 0); err != nil || got.handle != want {
					t.Errorf("%s: found: %t, %v", uuid, got.handle == want, err)
				}
			}
		}
		expect.Equal(t, 1, len(hanging.GetUUIDCalls()), "calls hang")
		if err := l.Close(); err != nil || len(lib.ShutdownCalls()) != 0 {
			t.Errorf("shut down %d times while a call hangs, %v", len(lib.ShutdownCalls()), err)
		}
		close(release)
		if got, err := l.GPU("GPU-0", 0); err != nil || got.handle != hanging {
			t.Errorf("once it answers: %v", err)
		}
		synctest.Wait()
		if err := l.Close(); err != nil || len(lib.ShutdownCalls()) != 1 {
			t.Errorf("shut down %d times in the end, %v", len(lib.ShutdownCalls()), err)
		}
	})
}

func TestOlderDriver(t *testing.T) {
	for _, missing := range symbols {
		lib := library(nil, missing)
		_, err := opened(lib, "/lib")
		expect.ErrorIs(t, err, ErrUnsupported)
		expect.Error(t, err, "580.159.04")
		expect.Equal(t, 1, len(lib.ShutdownCalls()), "without %s the library stays initialised", missing)
	}
}

func TestMIG(t *testing.T) {
	device := named("GPU-a", nvml.SUCCESS)
	device.GetMigModeFunc = func() (int, int, nvml.Return) {
		return nvml.DEVICE_MIG_ENABLE, nvml.DEVICE_MIG_ENABLE, nvml.SUCCESS
	}
	l, err := opened(library([]nvml.Device{device}), "/lib")
	expect.NoError(t, err)
	_, err = l.GPU("GPU-a", 0)
	expect.Error(t, err, "MIG")
}

// Nothing is ever promised to a control group, and "nothing is set" is told from other errors.
func TestSetAndGet(t *testing.T) {
	device := named("GPU-a", nvml.SUCCESS)
	device.SetMemoryLimits_v1Func = func(_ string, soft, _ uint64) nvml.Return {
		expect.Equal(t, 0, soft, "a soft limit of")
		return nvml.ERROR_NO_PERMISSION
	}
	l, err := opened(library([]nvml.Device{device}), "/lib")
	expect.NoError(t, err)
	g, err := l.GPU("GPU-a", 0)
	expect.NoError(t, err)
	expect.Error(t, g.Set("/x", 5), "CAP_SYS_ADMIN")
	device.SetMemoryLimits_v1Func = func(string, uint64, uint64) nvml.Return { return nvml.ERROR_NOT_SUPPORTED }
	expect.ErrorIs(t, g.Set("/x", 5), ErrUncounted)
	for ret, unset := range map[nvml.Return]bool{nvml.ERROR_NOT_SUPPORTED: true, nvml.ERROR_NOT_FOUND: true,
		nvml.ERROR_OPERATING_SYSTEM: false, nvml.ERROR_UNKNOWN: false} {
		device.GetMemoryLimits_v1Func = func(string) (nvml.MemoryLimits_v1, nvml.Return) {
			return nvml.MemoryLimits_v1{}, ret
		}
		if _, err := g.Get("/x"); err == nil || errors.Is(err, ErrUnset) != unset {
			t.Errorf("%v: %v, is unset: %t", ret, err, !unset)
		}
	}
}
