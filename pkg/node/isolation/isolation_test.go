// SPDX-License-Identifier: Apache-2.0

package isolation

import (
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"

	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/ptr"
	specs "tags.cncf.io/container-device-interface/specs-go"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/claim"
	"github.com/gpushare/dra-driver-gpushare/pkg/devices"
	"github.com/gpushare/dra-driver-gpushare/pkg/mode"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/mps"
)

func grant(m mode.Mode, index int, units, cores int64) claim.Grant {
	return claim.Grant{
		Request: "r", Device: devices.DeviceName(index, m), Mode: m, Units: units, CoresPercent: cores,
		Config: v1alpha1.Default(),
		GPU:    claim.GPU{Index: index, UUID: []string{"GPU-a", "GPU-b", "GPU-c", "GPU-d"}[index], MemoryMiB: 16130},
	}
}

func lifted(g claim.Grant) claim.Grant {
	g.Config.DisableIsolation = ptr.To(true)
	return g
}

func request(grants ...claim.Grant) Group {
	r := Group{Grants: grants}
	for _, g := range grants {
		r.ClaimUnits += g.Units
	}
	return r
}

// The public samples of what a container on ACK sees as its memory.
func TestCapMiB(t *testing.T) {
	for _, tc := range []struct{ gpuMiB, units, want int64 }{
		{15079, 3, 3231}, {16130, 2, 2150}, {16130, 3, 3226}, {16130, 4, 4301}, {23028, 8, 8373}, {15360, 3, 3072},
		{16130, 1, 1075}, {16130, 7, 7527}, {16130, 15, 16130}, {143771, 140, 143771},
	} {
		g := claim.Grant{Units: tc.units, GPU: claim.GPU{MemoryMiB: tc.gpuMiB}}
		expect.Equal(t, tc.want, g.CapMiB(), "MiB of %d units of a GPU of %d MiB", tc.units, tc.gpuMiB)
	}
}

// The limits of a full GPU's shares fit into what programs can allocate of it, however it is
// divided: what the driver keeps of a T4, some 450 MiB, is nobody's.
func TestLimitsOfAFullGPUFit(t *testing.T) {
	t4 := claim.GPU{MemoryMiB: 15360, ReservedMiB: 450}
	expect.Equal(t, 15, t4.Units(), "units of the GPU")
	for _, shares := range [][]int64{{15}, {1, 14}, {7, 8}, {5, 5, 5}, slices.Repeat([]int64{1}, 15)} {
		var sum int64
		for _, units := range shares {
			sum += claim.Grant{Units: units, GPU: t4}.CapMiB()
		}
		if free := t4.MemoryMiB - t4.ReservedMiB; sum > free || sum < free-int64(len(shares)) {
			t.Errorf("the limits of shares of %d units are %d MiB together, want the %d that can be allocated", shares, sum,
				free)
		}
	}
}

// ofProcess limits each process of the grant, too.
func ofProcess(g claim.Grant, memory string, percent int64) claim.Grant {
	limit := resource.MustParse(memory)
	g.Config = g.Config.Merge(v1alpha1.GpuConfig{ProcessMemory: &limit, ThreadPercentage: &percent})
	return g
}

func TestMPSEdits(t *testing.T) {
	b := NewRegistry(Config{MPSDir: "/run/gpushare/mps", MPSOverheadMiB: 514}).mps
	const pipe = "CUDA_MPS_PIPE_DIRECTORY=/run/gpushare/mps"
	for name, tc := range map[string]struct {
		request Group
		want    []string
	}{
		"memory": {request(grant(mode.MPS, 0, 3, 0)), []string{pipe, "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=3740M"}},
		"memory and compute": {request(grant(mode.CoreMem, 0, 3, 25)),
			[]string{pipe, "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=3740M", "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=25"}},
		"each process half": {request(ofProcess(grant(mode.MPS, 0, 3, 0), "1Gi", 50)),
			[]string{pipe, "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=1538M", "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=50"}},
		"a process' limits over the share's": {request(ofProcess(grant(mode.CoreMem, 0, 3, 25), "8Gi", 50)),
			[]string{pipe, "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=3740M", "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=25"}},
		"limits lifted": {request(lifted(grant(mode.CoreMem, 0, 3, 25))), []string{pipe}},
	} {
		t.Run(name, func(t *testing.T) {
			edits, err := b.Edits(tc.request)
			expect.NoError(t, err)
			expect.Equal(t, tc.want, edits.Env, "environment")
			if len(edits.Mounts) != 1 || edits.Mounts[0].HostPath != "/run/gpushare/mps/GPU-a/pipe" ||
				edits.Mounts[0].ContainerPath != "/run/gpushare/mps" {
				t.Errorf("mounts %+v: the client would not find its GPU's daemon", edits.Mounts)
			}
			expect.Equal(t, []string{"rbind", "ro", "nosuid", "nodev", "noexec"}, edits.Mounts[0].Options, "the mount's options")
		})
	}
}

// Each start of a container with limits is checked, and of no other.
func TestMPSChecksEachStart(t *testing.T) {
	b := NewRegistry(Config{MPSDir: "/run/gpushare/mps", MPSCheck: "/plugins/gpu-mps-check", ContainersPerShare: 4}).mps
	share := grant(mode.MPS, 0, 3, 0)
	share.ShareID = "s1"
	edits, err := b.Edits(request(share))
	expect.NoError(t, err)
	want := []*specs.Hook{{HookName: "createRuntime", Path: "/plugins/gpu-mps-check", Args: []string{"gpu-mps-check",
		"/run/gpushare/mps", "GPU-a"}, Env: []string{"MPS_SHARE=s1", "MPS_CONTAINERS=4"}}}
	expect.Equal(t, want, edits.Hooks, "hooks")
	for name, tc := range map[string]struct {
		b mpsBackend
		r Group
	}{
		"limits lifted":   {b, request(lifted(grant(mode.MPS, 0, 3, 0)))},
		"without a check": {NewRegistry(Config{}).mps, request(grant(mode.MPS, 0, 3, 0))},
	} {
		edits, err := tc.b.Edits(tc.r)
		expect.NoErrorf(t, err, "%s", name)
		expect.Equal(t, nil, edits.Hooks, "%s: hooks", name)
	}
}

func TestMPSRefusesTwoGPUs(t *testing.T) {
	b := mpsBackend{}
	expect.Error(t, b.Validate([]claim.Grant{grant(mode.MPS, 0, 1, 0), grant(mode.MPS, 0, 7, 0)}))
	err := b.Validate([]claim.Grant{grant(mode.MPS, 0, 1, 0), grant(mode.MPS, 2, 1, 0)})
	expect.Error(t, err, "GPUs 0 and 2")
}

func TestCGPUEdits(t *testing.T) {
	b := cgpuBackend{proc: "/proc/no_such_module"}
	noLegacyEnv := grant(mode.CGPU, 0, 3, 0)
	noLegacyEnv.Config.Env = ptr.To(v1alpha1.EnvNone)
	for name, tc := range map[string]struct {
		request Group
		want    []string
	}{
		"memory": {request(grant(mode.CGPU, 0, 3, 0)),
			[]string{"ALIYUN_COM_GPU_MEM_CONTAINER=3", "ALIYUN_COM_GPU_MEM_DEV=15", "ALIYUN_COM_GPU_VISIBLE_DEVICES=GPU-a"}},
		"env None limits": {request(noLegacyEnv),
			[]string{"ALIYUN_COM_GPU_MEM_CONTAINER=3", "ALIYUN_COM_GPU_MEM_DEV=15", "ALIYUN_COM_GPU_VISIBLE_DEVICES=GPU-a"}},
		"memory and compute": {request(grant(mode.CoreMem, 1, 3, 20)),
			[]string{"ALIYUN_COM_GPU_MEM_CONTAINER=3", "ALIYUN_COM_GPU_MEM_DEV=15", "ALIYUN_COM_GPU_VISIBLE_DEVICES=GPU-b",
				"ALIYUN_COM_GPU_SCHD_WEIGHT=4"}},
		"four GPUs": {request(grant(mode.CGPU, 0, 2, 0), grant(mode.CGPU, 1, 2, 0), grant(mode.CGPU, 2, 2, 0),
			grant(mode.CGPU, 3, 2, 0)),
			[]string{"ALIYUN_COM_GPU_MEM_CONTAINER=2", "ALIYUN_COM_GPU_MEM_DEV=15",
				"ALIYUN_COM_GPU_VISIBLE_DEVICES=GPU-a,GPU-b,GPU-c,GPU-d"}},
		"limits lifted": {request(lifted(grant(mode.CGPU, 0, 3, 0))), []string{"CGPU_DISABLE=true"}},
	} {
		t.Run(name, func(t *testing.T) {
			edits, err := b.Edits(tc.request)
			expect.NoError(t, err)
			expect.Equal(t, tc.want, edits.Env, "environment")
		})
	}
	b.keep = true
	edits, err := b.Edits(request(grant(mode.CGPU, 0, 3, 0)))
	if err != nil || !slices.Contains(edits.Env, "CGPU_DISABLE=false") {
		t.Errorf("the module would use the container's own CGPU_DISABLE: %v, %v", edits, err)
	}
	if edits, err := b.Edits(request(lifted(grant(mode.CGPU, 0, 3, 0)))); err != nil ||
		!slices.Equal(edits.Env, []string{"CGPU_DISABLE=true"}) {
		t.Errorf("lifted by an administrator: %v, %v", edits, err)
	}
	expect.Error(t, b.Check("GPU-a"), "/proc/no_such_module")
}

func TestHAMi(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "hami")
	library := filepath.Join(t.TempDir(), "libvgpu.so")
	b := hamiBackend{library: library, localLibrary: library, dir: dir, mu: &sync.Mutex{}}
	expect.Error(t, b.Check("GPU-a"), library)
	expect.NoError(t, os.WriteFile(library, nil, 0o600))
	expect.Error(t, b.Check("GPU-a"))
	r := request(grant(mode.CoreMem, 0, 3, 30), grant(mode.CoreMem, 1, 3, 30))
	edits, err := b.Edits(r)
	expect.NoError(t, err)
	want := []string{"CUDA_DEVICE_MEMORY_SHARED_CACHE=/usr/local/gpushare/cache/region.cache",
		"CUDA_DEVICE_ORDER=PCI_BUS_ID", "CUDA_DEVICE_MEMORY_LIMIT_0=3226m", "CUDA_DEVICE_MEMORY_LIMIT_1=3226m",
		"CUDA_DEVICE_SM_LIMIT=30"}
	expect.Equal(t, want, edits.Env, "environment")
	for range 2 {
		expect.NoError(t, b.SetUp(t.Context(), r))
	}
	inContainer := map[string]string{}
	for _, m := range edits.Mounts {
		inContainer[m.ContainerPath] = m.Type
		if _, err := os.Stat(m.HostPath); m.Type == "" && err != nil {
			t.Errorf("mount of %s: %v", m.ContainerPath, err)
		}
	}
	// A tmpfs is new at each start of a container.
	wantMounts := map[string]string{hamiLibrary: "", preloadFile: "", hamiCacheDir: "tmpfs", "/tmp/vgpulock": "tmpfs"}
	expect.Equal(t, wantMounts, inContainer, "kinds of mounts")
	off, err := b.Edits(request(lifted(grant(mode.CGPU, 0, 3, 0))))
	if err != nil || len(off.Env)+len(off.Mounts) != 0 {
		t.Errorf("limits lifted, but %+v, %v", off, err)
	}
}

func TestRegistry(t *testing.T) {
	module := t.TempDir()
	for name, tc := range map[string]struct {
		config Config
		want   map[mode.Mode]string
	}{
		"nothing there": {Config{CGPUProc: "/proc/no_such_module"},
			map[mode.Mode]string{mode.Exclusive: "whole-card card", mode.Share: "none none", mode.CGPU: "mps cooperative",
				mode.CoreMem: "mps cooperative", mode.MPS: "mps cooperative"}},
		"module loaded": {Config{CGPUProc: module},
			map[mode.Mode]string{mode.CGPU: "cgpu kernel", mode.CoreMem: "cgpu kernel", mode.MPS: "mps cooperative"}},
		"chosen by the admin": {Config{CGPUProc: module, CGPU: "mps", CoreMem: "hami", HostHAMiLibrary: "/l.so"},
			map[mode.Mode]string{mode.CGPU: "mps cooperative", mode.CoreMem: "hami cooperative"}},
		"module asked for": {Config{CGPUProc: "/proc/no_such_module", CGPU: "cgpu"},
			map[mode.Mode]string{mode.CGPU: "cgpu kernel"}},
	} {
		t.Run(name, func(t *testing.T) {
			r := NewRegistry(tc.config)
			for m, want := range tc.want {
				b, err := r.For(m)
				expect.NoError(t, err)
				expect.Equal(t, want, b.Name()+" "+string(LevelOn(b, "GPU-a")), "%s is isolated by", m)
				if again, err := r.ByName(b.Name()); err != nil || again.Name() != b.Name() {
					t.Errorf("%s cannot be found by its name: %v", b.Name(), err)
				}
			}
		})
	}
	r := NewRegistry(Config{})
	if b, err := r.For(mode.Dynamic); err == nil {
		t.Errorf("dynamic is served by %s", b.Name())
	}
	if b, err := r.For(mode.Topology); err != nil || b.Name() != mode.IsolationWholeGPU {
		t.Errorf("topology is served by %v, %v", b, err)
	}
}

// A wrong setting keeps the modes that use it from being served, and no others.
func TestWrongSettings(t *testing.T) {
	for name, tc := range map[string]struct {
		config Config
		wrong  map[mode.Mode]string // what is said of the modes that it concerns
	}{
		"unknown back end": {Config{CGPU: "magic"},
			map[mode.Mode]string{mode.CGPU: `ISOLATION_CGPU is "magic": use auto, kernel, cgpu, mps or hami`}},
		"no library": {Config{CoreMem: "hami"}, map[mode.Mode]string{mode.CoreMem: "set HAMI_LIBRARY"}},
		"negative overhead": {Config{MPSOverheadMiB: -1},
			map[mode.Mode]string{mode.CGPU: "MPS_MEMORY_OVERHEAD_MIB", mode.CoreMem: "MPS_MEMORY_OVERHEAD_MIB",
				mode.MPS: "is -1"}},
		"overhead of no limit": {Config{MPSOverheadMiB: -1, CoreMem: "cgpu", CGPU: "cgpu"},
			map[mode.Mode]string{mode.MPS: "is -1"}},
	} {
		t.Run(name, func(t *testing.T) {
			r := NewRegistry(tc.config)
			for _, m := range mode.Dynamic.ServedModes() {
				b, err := r.For(m)
				expect.NoError(t, err)
				limited := request(grant(m, 0, 3, 0))
				_, editsErr := b.Edits(limited)
				want, wrong := tc.wrong[m]
				expect.Error(t, editsErr, want)
				if !wrong {
					continue
				}
				expect.Error(t, b.Check("GPU-a"), want)
				_, err = b.Edits(request(lifted(grant(m, 0, 3, 0))))
				expect.NoErrorf(t, err, "mode %s, limits lifted", m)
			}
		})
	}
}

func TestMPSCheck(t *testing.T) {
	dir := mps.Dir(t.TempDir())
	b := mpsBackend{dir: dir}
	check := func(want string) {
		t.Helper()
		expect.Error(t, b.Check("GPU-a"), want)
	}
	check("gpu-mps-supervisor does not run")
	release, err := dir.Hold()
	expect.NoError(t, err)
	check("no MPS control daemon for this GPU")
	for state, want := range map[mps.State]string{mps.Starting: "Starting", mps.Down: "killed", mps.Ready: ""} {
		expect.NoError(t, dir.SetStatus("GPU-a", mps.Status{State: state, Reason: "killed"}))
		check(want)
	}
	expect.NoError(t, dir.SetStatus("GPU-a", mps.Status{State: mps.Ready}))
	expect.NoError(t, release())
	check("gpu-mps-supervisor does not run")
}

// The table of names and levels is that of the back ends.
func TestBackEndsAreThoseOfTheTable(t *testing.T) {
	r := NewRegistry(Config{CGPUProc: t.TempDir(), MPSDir: t.TempDir()})
	for _, want := range mode.Isolations() {
		b, err := r.ByName(want.Name)
		if err != nil || b.Name() != want.Name {
			t.Errorf("the back end of %s is %v, %v", want.Name, b, err)
		}
		if mode.ByMPS(want.Name) && want.Shares != mps.MaxClients {
			t.Errorf("%s keeps %d shares apart, and MPS takes %d clients", want.Name, want.Shares, mps.MaxClients)
		}
		if want.Level.Meaning() == "" {
			t.Errorf("explain has no words for level %s", want.Level)
		}
	}
}

// What a plan shows of a node's GPUs before the driver runs there is what the driver chooses then.
func TestAutoIsAsPlansSay(t *testing.T) {
	modes := append(mode.Dynamic.ServedModes(), mode.Topology, mode.MIG)
	for _, test := range []struct{ module, kernel bool }{{false, false}, {true, false}, {false, true}, {true, true}} {
		for _, m := range modes {
			c := Config{CGPUProc: t.TempDir() + "/none"}
			if test.module {
				c.CGPUProc = t.TempDir()
			}
			if test.kernel {
				c.Offered = map[mode.Mode]string{mode.CGPU: mode.IsolationKernel, mode.CoreMem: mode.IsolationKernel}
			}
			b, err := NewRegistry(c).For(m)
			expect.NoError(t, err)
			expect.Equal(t, mode.AutoIsolation(m, test.module, test.kernel).Name, b.Name(),
				"mode %s, module %t, kernel %t: the driver chooses, a plan shows", m, test.module, test.kernel)
		}
	}
}
