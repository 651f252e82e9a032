// SPDX-License-Identifier: Apache-2.0

package nvmllib_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"unsafe"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/internal/testneeds"
	"github.com/gpushare/dra-driver-gpushare/tests/standins/sim"
	"github.com/gpushare/dra-driver-gpushare/tests/standins/sim/memory"
)

// none is the hard limit that stands for none.
const none uint64 = 1<<64 - 1

const gib uint64 = 1 << 30

// Limits are those of a control group.
type Limits struct {
	Dir        string
	Soft, Hard uint64
}

// memoryLimits sets or gets, in the worker. The numbers are soft, hard and used; no limit is -1.
func memoryLimits(device nvml.Device, c call) answer {
	if c.What == "set limits" {
		return answer{Return: device.SetMemoryLimits_v1(c.Dir, c.Soft, c.Hard)}
	}
	limits, ret := device.GetMemoryLimits_v1(c.Dir)
	if ret != nvml.SUCCESS {
		return answer{Return: ret}
	}
	return answer{Numbers: []int64{int64(limits.SoftLimit), int64(limits.HardLimit), int64(limits.CurrentUsed)}}
}

// limited is a driver root of two GPUs, of which the kernel counts the first and the driver the second, and a
// tree of directories in place of control groups.
type limited struct {
	*worker
	root, tree string
}

const dmem, misc = 0, 1

func newLimited(t *testing.T, change ...func(*sim.Spec)) *limited {
	t.Helper()
	spec := load(t, "t4x2")
	for _, f := range change {
		f(spec)
	}
	root := writeRoot(t, spec, library(t))
	l := &limited{worker: startWorker(t, root), root: root, tree: t.TempDir()}
	l.write("", "cgroup.controllers")
	return l
}

func (l *limited) write(dir string, files ...string) {
	l.t.Helper()
	for _, file := range files {
		expect.NoError(l.t, os.WriteFile(filepath.Join(l.tree, dir, file), nil, 0o644))
	}
}

// group makes a control group of each of the names, one in the other.
func (l *limited) group(path string) {
	l.t.Helper()
	made := ""
	for name := range strings.SplitSeq(path, "/") {
		made = filepath.Join(made, name)
		expect.NoError(l.t, os.MkdirAll(filepath.Join(l.tree, made), 0o755))
		l.write(made, "cgroup.controllers", "cgroup.type", "dmem.max")
	}
}

func (l *limited) remove(path string) {
	l.t.Helper()
	expect.NoError(l.t, os.RemoveAll(filepath.Join(l.tree, path)))
}

func (l *limited) try(gpu int, path string, soft, hard uint64) nvml.Return {
	l.t.Helper()
	limits := Limits{Dir: filepath.Join(l.tree, path), Soft: soft, Hard: hard}
	return l.ask(call{What: "set limits", GPU: gpu, Limits: limits}).Return
}

func (l *limited) set(gpu int, path string, soft, hard uint64) {
	l.t.Helper()
	if ret := l.try(gpu, path, soft, hard); ret != nvml.SUCCESS {
		l.t.Errorf("set %d, %d on %q: %v", soft, hard, path, ret)
	}
}

func (l *limited) get(gpu int, path string) answer {
	l.t.Helper()
	return l.ask(call{What: "get limits", GPU: gpu, Limits: Limits{Dir: filepath.Join(l.tree, path)}})
}

func (l *limited) reads(gpu int, path string, soft, hard, used uint64) {
	l.t.Helper()
	want := answer{Numbers: []int64{int64(soft), int64(hard), int64(used)}}
	if got := l.get(gpu, path); expect.Diff(want, got) != nil {
		l.t.Errorf("GPU %d, %q: %+v, want %+v", gpu, path, got, want)
	}
}

func (l *limited) fails(gpu int, path string, want nvml.Return) {
	l.t.Helper()
	if got := l.get(gpu, path); got.Return != want {
		l.t.Errorf("GPU %d, %q: %+v, want %v", gpu, path, got, want)
	}
}

// program is a CUDA program of a control group.
func (l *limited) program(gpu int, path string) *memory.Client {
	l.t.Helper()
	group, err := memory.At(filepath.Join(l.tree, path))
	expect.NoError(l.t, err)
	client, err := memory.Open(l.root, l.read().GPUs[gpu].UUID, group)
	expect.NoError(l.t, err)
	return client
}

func TestMemoryLimitStructs(t *testing.T) {
	set, get := unsafe.Sizeof(nvml.SetMemoryLimits_v1{}), unsafe.Sizeof(nvml.GetMemoryLimits_v1{})
	if set != 24 || get != 32 {
		t.Errorf("%d and %d bytes, want 24 and 32", set, get)
	}
}

func TestMemoryLimits(t *testing.T) {
	l := newLimited(t)
	l.group("pods/a/main")
	l.group("pods/b/main")

	l.reads(dmem, "pods/a/main", 0, none, 0)
	l.fails(misc, "pods/a/main", nvml.ERROR_NOT_SUPPORTED)
	for gpu := range 2 {
		l.set(gpu, "pods/a", 0, 3*gib)
		l.reads(gpu, "pods/a", 0, 3*gib, 0)
	}
	// Where the driver counts, a control group reads as the nearest above it that is limited.
	l.reads(dmem, "pods/a/main", 0, none, 0)
	l.reads(misc, "pods/a/main", 0, 3*gib, 0)
	l.fails(misc, "pods/b/main", nvml.ERROR_NOT_SUPPORTED)

	for gpu := range 2 {
		l.set(gpu, "pods/a/main", 0, 4*gib)
		l.reads(gpu, "pods/a/main", 0, 4*gib, 0)
	}
	other := &limited{worker: startWorker(t, l.root), root: l.root, tree: l.tree}
	other.reads(dmem, "pods/a", 0, 3*gib, 0)
	// "No limit" is a limit there like others, and hides the one above.
	other.set(misc, "pods/a/main", 0, none)
	l.reads(misc, "pods/a/main", 0, none, 0)

	expect.NoError(t, sim.ReloadDriver(l.root))
	l.reads(dmem, "pods/a", 0, none, 0)
	l.fails(misc, "pods/a", nvml.ERROR_NOT_SUPPORTED)
}

func TestMemoryLimitErrors(t *testing.T) {
	l := newLimited(t)
	l.group("pods/a")
	expect.NoError(t, os.MkdirAll(filepath.Join(l.tree, "plain"), 0o755))
	for _, tc := range []struct {
		name       string
		gpu        int
		path       string
		soft, hard uint64
		want       nvml.Return
	}{
		{"more promised than allowed", dmem, "pods/a", 2 * gib, gib, nvml.ERROR_INVALID_ARGUMENT},
		{"more than the GPU has", dmem, "pods/a", 0, 15*gib + 1, nvml.ERROR_INVALID_ARGUMENT},
		{"all that the GPU has", dmem, "pods/a", 0, 15 * gib, nvml.SUCCESS},
		{"more promised than the GPU has", misc, "pods/a", 16 * gib, none, nvml.ERROR_INVALID_ARGUMENT},
		{"no such directory", misc, "pods/b", 0, gib, nvml.ERROR_OPERATING_SYSTEM},
		{"no control group", misc, "plain", 0, gib, nvml.ERROR_UNKNOWN},
		{"the root, which has no files of dmem", dmem, "", 0, gib, nvml.ERROR_NOT_SUPPORTED},
		{"the root", misc, "", 0, gib, nvml.ERROR_INVALID_ARGUMENT},
	} {
		if got := l.try(tc.gpu, tc.path, tc.soft, tc.hard); got != tc.want {
			t.Errorf("%s: %v, want %v", tc.name, got, tc.want)
		}
	}
	l.fails(misc, "pods/b", nvml.ERROR_OPERATING_SYSTEM)
	l.remove("pods/a/dmem.max")
	l.fails(dmem, "pods/a", nvml.ERROR_NOT_SUPPORTED)

	for _, fault := range []string{"limits-refused", "limits-ignored"} {
		inject(t, l.root, fault) // on GPU 1
		want := map[string]nvml.Return{"limits-refused": nvml.ERROR_NO_PERMISSION}[fault]
		if got := l.try(misc, "pods/a", 0, gib); got != want {
			t.Errorf("%s: %v, want %v", fault, got, want)
		}
		l.fails(misc, "pods/a", nvml.ERROR_NOT_SUPPORTED)
		inject(t, l.root, "heal")
	}
	l.set(misc, "pods/a", 0, gib)
}

func TestMemoryLimitsAreRefused(t *testing.T) {
	off := newLimited(t, func(s *sim.Spec) { s.GPUs[misc].MemoryLimits = sim.MemoryLimitsOff })
	off.group("a")
	off.fails(misc, "a", nvml.ERROR_NOT_SUPPORTED)
	if ret := off.try(misc, "a", 0, gib); ret != nvml.ERROR_NOT_SUPPORTED {
		t.Errorf("a driver that was told not to: %v", ret)
	}
	mig := newLimited(t, func(s *sim.Spec) {
		model := s.Models["t4"]
		model.MIG = true
		s.Models["t4"] = model
		s.GPUs[dmem].MIG.Enabled = true
	})
	mig.group("a")
	mig.fails(dmem, "a", nvml.ERROR_NOT_SUPPORTED)
	if ret := mig.try(dmem, "a", 0, gib); ret != nvml.ERROR_NOT_SUPPORTED {
		t.Errorf("in MIG mode: %v", ret)
	}
}

// Who is root in a user namespace of its own may read, and not set.
func TestMemoryLimitsNeedPrivileges(t *testing.T) {
	testneeds.Root(t, "a process of another user namespace is started")
	l := newLimited(t)
	l.group("a")
	l.set(dmem, "a", 0, gib)
	root := []syscall.SysProcIDMap{{Size: 1}}
	other := &limited{worker: startWorkerIn(t, l.root, &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWUSER,
		UidMappings: root, GidMappings: root}), root: l.root, tree: l.tree}
	if ret := other.try(dmem, "a", 0, none); ret != nvml.ERROR_NO_PERMISSION {
		t.Errorf("without privileges: %v", ret)
	}
	other.reads(dmem, "a", 0, gib, 0)
}

// A limit outlives its control group where the driver counts, and meets the next one there.
func TestMemoryLimitsAfterTheirControlGroup(t *testing.T) {
	l := newLimited(t)
	for gpu := range 2 {
		l.group("pods/a")
		l.set(gpu, "pods/a", gib, 2*gib)
		l.remove("pods/a")
		l.group("pods/a")
	}
	l.reads(dmem, "pods/a", 0, none, 0)
	l.reads(misc, "pods/a", gib, 2*gib, 0)
	// What was promised to it stays in the sums above.
	l.reads(dmem, "pods", gib, none, 0)
	l.set(misc, "pods/a", 0, none)
	l.remove("pods/a")
	l.group("pods/a")
	l.reads(misc, "pods/a", 0, none, 0)
}

func TestAllocations(t *testing.T) {
	l := newLimited(t)
	l.group("pods/a/one")
	l.group("pods/a/two")
	context := uint64(memory.ContextMiB) << 20
	for gpu, name := range []string{"dmem", "misc"} {
		before := l.program(gpu, "pods/a/one")
		expect.NoError(t, before.Allocate(100))
		l.set(gpu, "pods/a", 0, 3*gib)
		counted := context + 100<<20
		if gpu == misc {
			counted = 0 // What was there before the limit is not.
		}
		l.reads(gpu, "pods/a", 0, 3*gib, counted)
		expect.NoError(t, before.Close())
		one, two := l.program(gpu, "pods/a/one"), l.program(gpu, "pods/a/two")
		if err := one.Allocate(1024); err != nil {
			t.Errorf("%s: below the limit: %v", name, err)
		}
		if err := two.Allocate(1024); !isOutOfMemory(err) {
			t.Errorf("%s: the other container beyond the pod's limit: %v", name, err)
		}
		l.reads(gpu, "pods/a/two", 0, map[int]uint64{dmem: none, misc: 3 * gib}[gpu],
			map[int]uint64{dmem: context, misc: 2*context + gib}[gpu])
		l.set(gpu, "pods/a/two", 0, 4*gib)
		// Where the driver counts, the nearer limit is the only one.
		if err := two.Allocate(3 * 1024); isOutOfMemory(err) != (gpu == dmem) {
			t.Errorf("%s: a container's larger limit in a pod's: %v", name, err)
		}
		total := map[int]int64{dmem: 4096, misc: 4096}[gpu]
		if _, got, err := two.Info(); got != total || err != nil {
			t.Errorf("%s: total %d MiB, %v", name, got, err)
		}
		if ret := l.try(gpu, "pods/a", 0, gib); (ret == nvml.SUCCESS) != (gpu == dmem) {
			t.Errorf("%s: a limit below what is in use: %v", name, ret)
		}
		if err := one.Close(); err != nil {
			t.Error(err)
		}
		if err := two.Close(); err != nil {
			t.Error(err)
		}
		l.reads(gpu, "pods/a/two", 0, 4*gib, 0)
	}
}

func isOutOfMemory(err error) bool { return errors.Is(err, memory.ErrOutOfMemory) }
