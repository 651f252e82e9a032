// SPDX-License-Identifier: Apache-2.0

package isolation

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	specs "tags.cncf.io/container-device-interface/specs-go"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/pkg/claim"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu/bounded"
	"github.com/gpushare/dra-driver-gpushare/pkg/mode"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/memlimit"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/mps"
)

// both is a node whose kernel limits memory on two GPUs, one only on the first.
var (
	both = KernelLimits{Library: "/lib/libnvidia-ml.so.1", Kubelet: "/kubepods", Settled: true,
		Kinds: map[string]memlimit.Kind{"GPU-a": memlimit.DMem, "GPU-b": memlimit.Misc}}
	one = KernelLimits{Settled: true, Kinds: map[string]memlimit.Kind{"GPU-a": memlimit.DMem},
		Reasons: map[string]error{"GPU-b": errors.New("NVML answered: Not Supported")}}
	older = KernelLimits{Settled: true, Err: errors.New("the driver is older")}
)

func registryWith(c Config, found KernelLimits) *Registry {
	c.CGPUProc = "/proc/no_such_module"
	c.Kernel = KernelConfig{Hook: "/plugins/gpu-memory-limit", CgroupRoot: "/sys/fs/cgroup",
		Ledger: "/plugins/memory-limits"}
	r := NewRegistry(c)
	r.SetKernelLimits(found)
	return r
}

// What serves a mode by its setting, and on which of two GPUs the kernel limits memory. A row
// with a reason serves no GPU.
func TestChoiceOfTheKernel(t *testing.T) {
	for name, tc := range map[string]struct {
		m       mode.Mode
		config  Config
		found   KernelLimits
		want    string
		limited []string
		reason  string
	}{
		"share": {mode.Share, Config{}, both, mode.IsolationNone, nil, ""},
		"share, asked for": {mode.Share, Config{Share: "kernel"}, both, mode.IsolationKernel, []string{"GPU-a",
			"GPU-b"}, ""},
		"share, and it is not there": {mode.Share, Config{Share: "kernel"}, older, mode.IsolationKernel, []string{"GPU-a",
			"GPU-b"}, "the driver is older"},
		"share, a typo":        {mode.Share, Config{Share: "kernal"}, both, mode.IsolationNone, nil, "ISOLATION_SHARE"},
		"cgpu":                 {mode.CGPU, Config{}, both, mode.IsolationKernel, []string{"GPU-a", "GPU-b"}, ""},
		"cgpu, one GPU has it": {mode.CGPU, Config{}, one, mode.IsolationMPS, []string{"GPU-a"}, ""},
		"cgpu, no GPU has it":  {mode.CGPU, Config{}, older, mode.IsolationMPS, nil, ""},
		"cgpu, asked for": {mode.CGPU, Config{CGPU: "kernel"}, older, mode.IsolationKernel, []string{"GPU-a",
			"GPU-b"}, "the driver is older"},
		"cgpu, MPS asked for": {mode.CGPU, Config{CGPU: "mps"}, both, mode.IsolationMPS, nil, ""},
		"core_mem":            {mode.CoreMem, Config{}, both, mode.IsolationMPS, []string{"GPU-a", "GPU-b"}, ""},
		"core_mem, asked for": {mode.CoreMem, Config{CoreMem: "kernel"}, one, mode.IsolationMPS, []string{"GPU-a",
			"GPU-b"}, "Not Supported"},
		"core_mem, MPS asked for": {mode.CoreMem, Config{CoreMem: "mps"}, both, mode.IsolationMPS, nil, ""},
		"mps":                     {mode.MPS, Config{}, one, mode.IsolationMPS, []string{"GPU-a"}, ""},
		"mps, asked for": {mode.MPS, Config{MPS: "kernel"}, older, mode.IsolationMPS, []string{"GPU-a", "GPU-b"},
			"the driver is older"},
		"mps alone":   {mode.MPS, Config{MPS: "mps"}, both, mode.IsolationMPS, nil, ""},
		"mps, a typo": {mode.MPS, Config{MPS: "none"}, both, mode.IsolationMPS, nil, "ISOLATION_MPS"},
		"whole GPUs":  {mode.Exclusive, Config{}, both, mode.IsolationWholeGPU, nil, ""},
	} {
		t.Run(name, func(t *testing.T) {
			r := registryWith(tc.config, tc.found)
			b, err := r.For(tc.m)
			expect.NoError(t, err)
			expect.Equal(t, tc.want, b.Name(), "isolation")
			var limited []string
			for _, uuid := range []string{"GPU-a", "GPU-b"} {
				held, kind := b.KernelMemory(tc.m, uuid)
				if held {
					limited = append(limited, uuid)
				}
				if found := tc.found.Kinds[uuid]; held && kind != found || !held && kind != "" {
					t.Errorf("%s is counted by %q, found was %q", uuid, kind, found)
				}
			}
			expect.Equal(t, tc.limited, limited, "limited GPUs")
			// Without a supervisor MPS is never there.
			if tc.reason != "" {
				expect.Error(t, b.Check("GPU-b"), tc.reason)
			}
		})
	}
}

// A choice that changed by itself would close the GPUs; what is gone closes them.
func TestChoiceStays(t *testing.T) {
	r := registryWith(Config{}, both)
	r.SetKernelLimits(older)
	b, err := r.For(mode.CGPU)
	if err != nil || b.Name() != mode.IsolationKernel || b.Check("GPU-a") == nil {
		t.Errorf("after it went away: %v, %v, %v", b, err, b.Check("GPU-a"))
	}
	r = registryWith(Config{}, older)
	r.SetKernelLimits(both)
	if b, err := r.For(mode.CGPU); err != nil || b.Name() != mode.IsolationMPS {
		t.Errorf("after it came: %v, %v", b, err)
	}
}

// What may pass decides nothing: until it is known what the kernel can limit, the node offers what it did.
func TestChoiceUntilItIsKnown(t *testing.T) {
	unread := both
	unread.Settled, unread.Reasons = false, map[string]error{"GPU-b": errors.New("no answer in time")}
	for name, found := range map[string][]KernelLimits{
		"not looked yet": nil, "no answer": {{Err: errors.New("no answer in time")}}, "a GPU without answer": {unread},
	} {
		for offered, want := range map[string]string{"": mode.IsolationMPS, mode.IsolationMPS: mode.IsolationMPS,
			mode.IsolationMPSNode: mode.IsolationMPS, mode.IsolationKernel: mode.IsolationKernel} {
			for _, then := range []struct {
				KernelLimits
				want string
			}{{both, mode.IsolationKernel}, {one, mode.IsolationMPS}, {older, mode.IsolationMPS}} {
				r := NewRegistry(Config{CGPUProc: "/proc/no_such_module", Offered: map[mode.Mode]string{mode.CGPU: offered}})
				for _, limits := range found {
					r.SetKernelLimits(limits)
				}
				if b, err := r.For(mode.CGPU); err != nil || b.Name() != want {
					t.Errorf("%s, offered was %q: %v, %v, want %s", name, offered, b, err, want)
				}
				r.SetKernelLimits(then.KernelLimits)
				if b, err := r.For(mode.CGPU); err != nil || b.Name() != then.want {
					t.Errorf("%s, offered was %q, then %+v: %v, %v, want %s", name, offered, then, b, err, then.want)
				}
			}
		}
	}
}

// What the kernel limited, or may limit for all that is known, is not done without: the claim is refused meanwhile.
func TestKernelBesideMPSWhileNothingAnswers(t *testing.T) {
	hung := fmt.Errorf("trying a memory limit: %w", bounded.ErrHung)
	silent := both
	silent.Settled, silent.Kinds = false, map[string]memlimit.Kind{"GPU-b": memlimit.Misc}
	silent.Reasons = map[string]error{"GPU-a": hung}
	broken := KernelLimits{Err: errors.New("the hook does not run on the host")}
	for name, tc := range map[string]struct {
		found []KernelLimits
		held  bool
		says  string
	}{
		"not looked yet":               {nil, true, "not looked yet"},
		"a GPU without answer":         {[]KernelLimits{silent}, true, "no answer in time"},
		"no answer":                    {[]KernelLimits{{Err: hung}}, true, "no answer in time"},
		"a GPU without answer, had it": {[]KernelLimits{both, silent}, true, "no answer in time"},
		"no answer, had it":            {[]KernelLimits{both, {Err: hung}}, true, "no answer in time"},
		"a failure, had it":            {[]KernelLimits{both, broken}, true, "does not run"},
		"a failure, had it beside another": {[]KernelLimits{{Kinds: both.Kinds, Reasons: map[string]error{"GPU-c": hung}},
			broken}, true, "does not run"},
		"a failure that was there all time": {[]KernelLimits{broken}, false, ""},
		"no answer, never had it": {[]KernelLimits{{Settled: true, Reasons: map[string]error{"GPU-a": older.Err}}, silent},
			false, ""},
		"never had it": {[]KernelLimits{older}, false, ""},
	} {
		t.Run(name, func(t *testing.T) {
			r := NewRegistry(Config{CGPUProc: "/proc/no_such_module", Kernel: KernelConfig{Hook: "/plugins/gpu-memory-limit"}})
			for _, found := range tc.found {
				r.SetKernelLimits(found)
			}
			if held, kind := r.mps.KernelMemory(mode.CoreMem, "GPU-a"); held != tc.held || kind != "" {
				t.Errorf("held: %t, by %q; want %t", held, kind, tc.held)
			}
			if tc.held {
				expect.Error(t, r.memory.check("GPU-a"), tc.says)
			}
		})
	}
	// By a GPU beside one that hangs it is known.
	r := registryWith(Config{}, silent)
	if held, kind := r.mps.KernelMemory(mode.MPS, "GPU-b"); !held || kind != memlimit.Misc {
		t.Errorf("beside it: %t, by %q", held, kind)
	}
	silent.Kinds, silent.Reasons["GPU-b"] = nil, errors.New("nobody counts")
	r = registryWith(Config{}, silent)
	if held, _ := r.mps.KernelMemory(mode.MPS, "GPU-b"); held {
		t.Error("a GPU that has none waits for one that hangs")
	}
	// Where there is no hook there is nothing to wait for.
	if held, _ := NewRegistry(Config{}).mps.KernelMemory(mode.MPS, "GPU-a"); held {
		t.Error("held without a hook")
	}
}

// A claim that was to be limited by the kernel beside MPS is not prepared without.
func TestClaimBesideMPSWhileNothingAnswers(t *testing.T) {
	r, dir := byMPS(t)
	expect.NoError(t, dir.SetStatus("GPU-a", mps.Status{State: mps.Ready}))
	r.memory.config.Kernel.Hook = "/plugins/gpu-memory-limit"
	r.SetKernelLimits(both)
	r.SetKernelLimits(KernelLimits{Reasons: map[string]error{"GPU-a": bounded.ErrHung}})
	g := grant(mode.CoreMem, 0, 3, 25)
	g.Isolation, g.ShareID = mode.IsolationMPS, "s1"
	g.KernelMemory, _ = r.mps.KernelMemory(g.Mode, g.GPU.UUID)
	c, err := ForClaim(r, "c1", []claim.Grant{g}, nil)
	expect.NoError(t, err)
	expect.Error(t, c.Check(), "no answer in time")
}

// No word stronger than what is known of it (limits.md §7, §10.12).
func TestLevelOfTheKernel(t *testing.T) {
	expect.Equal(t, "device-memory", LevelOn(kernelBackend{}, "GPU-a"), "level")
	b, err := registryWith(Config{MPS: "kernel", MPSDir: t.TempDir()}, both).For(mode.MPS)
	if err != nil || LevelOn(b, "GPU-a") != mode.LevelCooperative {
		t.Errorf("level beside MPS: %s, %v", LevelOn(b, "GPU-a"), err)
	}
}

func held(g claim.Grant) claim.Grant {
	g.KernelMemory, g.ShareID = true, "s1"
	if g.Mode == mode.Share || g.Mode == mode.CGPU {
		g.Isolation = mode.IsolationKernel
	} else {
		g.Isolation = mode.IsolationMPS
	}
	return g
}

// hooksOf are those of a claim's first container group, as their arguments.
func hooksOf(t *testing.T, r *Registry, grants ...claim.Grant) []*specs.Hook {
	t.Helper()
	c, err := ForClaim(r, "c1", grants, nil)
	expect.NoError(t, err)
	_, edits, err := c[0].Edits()
	expect.NoError(t, err)
	return edits.Hooks
}

func TestHookOfTheKernel(t *testing.T) {
	common := []string{"gpu-memory-limit", "set", "--library", "/lib/libnvidia-ml.so.1", "--cgroup-root",
		"/sys/fs/cgroup",
		"--kubelet-root", "/kubepods", "--ledger", "/plugins/memory-limits", "--claim", "c1", "--share", "s1",
		"--containers", "4"}
	other := held(grant(mode.CGPU, 0, 2, 0))
	other.Request = "r2"
	for name, tc := range map[string]struct {
		grants []claim.Grant
		want   []string
	}{
		"a share":        {[]claim.Grant{held(grant(mode.CGPU, 0, 3, 0))}, []string{"--only", "GPU-a=3240/16130@0"}},
		"in mode share":  {[]claim.Grant{held(grant(mode.Share, 0, 3, 0))}, []string{"--only", "GPU-a=3240/16130@0"}},
		"beside another": {[]claim.Grant{held(grant(mode.CGPU, 0, 3, 0)), other}, []string{"GPU-a=3240/16130@0"}},
		"two GPUs": {[]claim.Grant{held(grant(mode.CGPU, 0, 3, 0)), held(grant(mode.CGPU, 1, 3, 0))},
			[]string{"--only", "GPU-a=3240/16130@0", "GPU-b=3240/16130@1"}},
		"limits switched off": {[]claim.Grant{held(lifted(grant(mode.CGPU, 0, 3, 0)))}, []string{"--only", "--lifted",
			"GPU-a=16130/16130@0"}},
	} {
		t.Run(name, func(t *testing.T) {
			hooks := hooksOf(t, registryWith(Config{ContainersPerShare: 4, MPSOverheadMiB: 14}, both), tc.grants...)
			if len(hooks) != 1 || hooks[0].HookName != "createRuntime" || hooks[0].Path != "/plugins/gpu-memory-limit" ||
				len(hooks[0].Env) > 0 {
				t.Fatalf("hooks %+v", hooks)
			}
			expect.Equal(t, slices.Concat(common, tc.want), hooks[0].Args, "arguments")
		})
	}
}

// The kernel's limit is added to those of MPS, and removes none.
func TestKernelBesideMPS(t *testing.T) {
	r := registryWith(Config{MPSDir: "/run/gpushare/mps", MPSCheck: "/plugins/gpu-mps-check"}, both)
	without := grant(mode.CoreMem, 0, 3, 25)
	without.Isolation, without.ShareID = mode.IsolationMPS, "s1"
	for _, g := range []claim.Grant{held(grant(mode.CoreMem, 0, 3, 25)), without} {
		c, err := ForClaim(r, "c1", []claim.Grant{g}, nil)
		expect.NoError(t, err)
		_, edits, err := c[0].Edits()
		expect.NoError(t, err)
		if !slices.Contains(edits.Env, "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=3226M") ||
			!slices.Contains(edits.Env, "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=25") {
			t.Errorf("by the kernel %t: environment %q", g.KernelMemory, edits.Env)
		}
		var hooks []string
		for _, h := range edits.Hooks {
			hooks = append(hooks, h.Args[0])
		}
		want := []string{"gpu-mps-check"}
		if g.KernelMemory {
			want = []string{"gpu-memory-limit", "gpu-mps-check"}
		}
		expect.Equal(t, want, hooks, "by the kernel %t: hooks", g.KernelMemory)
	}
}

// A claim that was prepared with the kernel's limit does not go on without.
func TestPreparedWithTheKernel(t *testing.T) {
	g := held(grant(mode.CGPU, 0, 3, 0))
	r := registryWith(Config{}, both)
	r.memory.config.Kernel.Hook = ""
	c, err := ForClaim(r, "c1", []claim.Grant{g}, nil)
	expect.NoError(t, err)
	_, _, err = c[0].Edits()
	expect.Error(t, err, "MEMORY_LIMIT_HOOK")
	c, err = ForClaim(registryWith(Config{}, older), "c1", []claim.Grant{g}, nil)
	expect.NoError(t, err)
	expect.Error(t, c.Check(), "the driver is older")
	if !Limited(g) || Limited(held(lifted(grant(mode.Share, 0, 3, 0)))) || Limited(grant(mode.Share, 0, 3, 0)) {
		t.Error("which grants are limited")
	}
}

func TestOneDaemonThatInsists(t *testing.T) {
	r := registryWith(Config{MPS: "kernel"}, older)
	b, err := r.For(mode.MPS)
	expect.NoError(t, err)
	b, is := b.NodeDaemon()
	if !is || b.Name() != mode.IsolationMPSNode || !strings.Contains(b.Check("GPU-a").Error(), "the driver is older") {
		t.Errorf("%t, %s: %v", is, b.Name(), b.Check("GPU-a"))
	}
}
