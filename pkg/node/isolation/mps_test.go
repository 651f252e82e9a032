// SPDX-License-Identifier: Apache-2.0

package isolation

import (
	"errors"
	"testing"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/pkg/claim"
	"github.com/gpushare/dra-driver-gpushare/pkg/mode"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/mps"
)

// byMPS is the back end on a node whose supervisor is of an earlier version.
func byMPS(t *testing.T) (*Registry, mps.Dir) {
	t.Helper()
	dir := mps.Dir(t.TempDir())
	release, err := dir.Hold()
	expect.NoError(t, err)
	t.Cleanup(func() {
		expect.Error(t, release())
	})
	return NewRegistry(Config{MPSDir: string(dir), CGPUProc: "/proc/no_such_module", MPSOverheadMiB: 500}), dir
}

// What a container may use is said before it starts: its server gives nobody more.
func TestRoomIsMadeForTheContainer(t *testing.T) {
	for name, tc := range map[string]struct {
		grants []claim.Grant
		want   mps.Limits
	}{
		"memory":             {[]claim.Grant{grant(mode.MPS, 0, 3, 0)}, mps.Limits{MemoryMiB: 3726, ThreadPercent: 100}},
		"memory and compute": {[]claim.Grant{grant(mode.CoreMem, 0, 3, 25)}, mps.Limits{MemoryMiB: 3726, ThreadPercent: 25}},
		"its limits are lifted": {[]claim.Grant{lifted(grant(mode.MPS, 0, 3, 0))},
			mps.Limits{MemoryMiB: 16130, ThreadPercent: 100}},
	} {
		t.Run(name, func(t *testing.T) {
			backends, dir := byMPS(t)
			uuid := tc.grants[0].GPU.UUID
			expect.NoError(t, dir.SetStatus(uuid, mps.Status{State: mps.Ready}))
			c, err := ForClaim(backends, "c1", tc.grants, nil)
			expect.NoError(t, err)
			expect.NoError(t, c.SetUp(t.Context()))
			use, err := dir.Use(uuid)
			if diff := expect.Diff(mps.Use{Claimed: true, Limits: tc.want, Seq: 1}, use); err != nil || diff != nil {
				t.Errorf("%v %v", err, diff)
			}
			expect.Equal(t, map[string]mps.Limits{uuid: tc.want}, c.MPSLimits(mode.DaemonOfGPU), "limits of the daemon")
		})
	}
}

func TestLevelOn(t *testing.T) {
	backends, dir := byMPS(t)
	b, err := backends.For(mode.MPS)
	expect.NoError(t, err)
	expect.Equal(t, mode.LevelCooperative, LevelOn(b, "GPU-a"), "level")
	expect.NoError(t, dir.SetStatus("GPU-a", mps.Status{DriverEnforced: true}))
	expect.Equal(t, mode.LevelDriver, LevelOn(b, "GPU-a"), "level")
	expect.Equal(t, mode.LevelNone, LevelOn(noLimits{name: mode.IsolationNone}, "GPU-a"), "level")
}

// byNodeMPS is the back end of one daemon for all GPUs.
func byNodeMPS(t *testing.T) (*Registry, mps.Dir) {
	t.Helper()
	backends, dir := byMPS(t)
	return backends, dir.OfNode()
}

func ofNode(grants ...claim.Grant) []claim.Grant {
	for i := range grants {
		grants[i].Isolation = mode.IsolationMPSNode
	}
	return grants
}

// With one daemon for all GPUs a container has several, each with a limit of its own.
func TestContainerWithSeveralGPUsByOneDaemon(t *testing.T) {
	backends, dir := byNodeMPS(t)
	for _, uuid := range []string{"GPU-a", "GPU-c"} {
		expect.NoError(t, dir.SetStatus(uuid, mps.Status{State: mps.Ready}))
	}
	grants := ofNode(grant(mode.CoreMem, 0, 3, 25), grant(mode.CoreMem, 2, 2, 25))
	c, err := ForClaim(backends, "c1", grants, nil)
	expect.NoError(t, err)
	parts, err := Parts(backends, "claim", grants)
	expect.NoError(t, errors.Join(err, c.Check(), c.SetUp(t.Context()), CheckContainer(parts)))
	_, edits, err := c[0].Edits()
	expect.NoError(t, err)
	expect.Equal(t, []string{"CUDA_MPS_PIPE_DIRECTORY=/run/gpushare/mps",
		"CUDA_VISIBLE_DEVICES=GPU-a,GPU-c", "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=GPU-a=3726M,GPU-c=2650M",
		"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=25"}, edits.Env, "environment")
	if len(edits.Mounts) != 1 || edits.Mounts[0].HostPath != dir.PipeDir("GPU-c") {
		t.Errorf("mounts %+v", edits.Mounts)
	}
	want := map[string]mps.Limits{"GPU-a": {MemoryMiB: 3726, ThreadPercent: 25}, "GPU-c": {MemoryMiB: 2650,
		ThreadPercent: 25}}
	expect.Equal(t, want, c.MPSLimits(mode.DaemonOfNode), "limits of the daemon for all GPUs")
	expect.Equal(t, map[string]mps.Limits{}, c.MPSLimits(mode.DaemonOfGPU), "limits of daemons of single GPUs")
	for uuid, limits := range want {
		use, err := dir.Use(uuid)
		if diff := expect.Diff(mps.Use{Claimed: true, Limits: limits, Seq: 1}, use); err != nil || diff != nil {
			t.Errorf("GPU %s: %v %v", uuid, err, diff)
		}
	}
}

// The daemon may serve some of a container's GPUs only, when it starts.
func TestTheCheckOfAContainerIsForAllItsGPUs(t *testing.T) {
	grants := ofNode(grant(mode.MPS, 1, 3, 0), grant(mode.MPS, 0, 3, 0), grant(mode.MPS, 2, 3, 0))
	for name, tc := range map[string]struct {
		grants []claim.Grant
		more   []string
	}{
		"three": {grants, []string{"MPS_MORE_GPUS=GPU-a,GPU-c"}},
		"one":   {grants[:1], nil},
	} {
		tc.grants[0].ShareID = "s1"
		b, _ := NewRegistry(Config{MPSDir: "/run/mps", MPSCheck: "/gpu-mps-check", ContainersPerShare: 4}).mps.NodeDaemon()
		edits, err := b.Edits(request(tc.grants...))
		if err != nil || len(edits.Hooks) != 1 {
			t.Fatalf("%s: hooks %v, %v", name, edits.Hooks, err)
		}
		hook := edits.Hooks[0]
		expect.Equal(t, []string{"gpu-mps-check", "/run/mps/mps-node", "GPU-b"}, hook.Args, "%s: arguments", name)
		want := append([]string{"MPS_SHARE=s1", "MPS_CONTAINERS=4"}, tc.more...)
		expect.Equal(t, want, hook.Env, "%s: environment", name)
	}
}

func TestOneDaemonGivesAProcessOnePercentage(t *testing.T) {
	backends, dir := byNodeMPS(t)
	for _, uuid := range []string{"GPU-a", "GPU-b"} {
		expect.NoError(t, dir.SetStatus(uuid, mps.Status{State: mps.Ready}))
	}
	c, err := ForClaim(backends, "c1", ofNode(grant(mode.CoreMem, 0, 3, 25), grant(mode.CoreMem, 1, 3, 50)), nil)
	expect.NoError(t, err)
	expect.Error(t, c.Check(), "25 percent of the compute of GPU 0 and 50 of GPU 1")
}

// One GPU of a container whose daemon is down is enough: the daemon is that of all.
func TestEachGPUOfTheOneDaemonIsChecked(t *testing.T) {
	backends, dir := byNodeMPS(t)
	expect.NoError(t, dir.SetStatus("GPU-a", mps.Status{State: mps.Ready}))
	c, err := ForClaim(backends, "c1", ofNode(grant(mode.MPS, 0, 3, 0), grant(mode.MPS, 1, 3, 0)), nil)
	expect.NoError(t, err)
	expect.Error(t, c.Check(), "GPU 1: its share could not be limited by mps-node")
	expect.Equal(t, nil, c.BesideMPS(), "beside MPS")
}
