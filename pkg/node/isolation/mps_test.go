// SPDX-License-Identifier: Apache-2.0

package isolation

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gpushare/dra-driver-gpushare/pkg/claim"
	"github.com/gpushare/dra-driver-gpushare/pkg/mode"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/mps"
)

// byMPS is the back end on a node whose supervisor is of an earlier version.
func byMPS(t *testing.T) (*Registry, mps.Dir) {
	t.Helper()
	dir := mps.Dir(t.TempDir())
	release, err := dir.Hold()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := release(); err != nil {
			t.Error(err)
		}
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
			if err := dir.SetStatus(uuid, mps.Status{State: mps.Ready}); err != nil {
				t.Fatal(err)
			}
			c, err := ForClaim(backends, "c1", tc.grants, nil)
			if err != nil {
				t.Fatal(err)
			}
			if err := c.SetUp(t.Context()); err != nil {
				t.Fatal(err)
			}
			use, err := dir.Use(uuid)
			if diff := cmp.Diff(mps.Use{Claimed: true, Limits: tc.want, Seq: 1}, use); err != nil || diff != "" {
				t.Errorf("%v (-want +got):\n%s", err, diff)
			}
			if diff := cmp.Diff(map[string]mps.Limits{uuid: tc.want}, c.MPSLimits()); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestLevelOn(t *testing.T) {
	backends, dir := byMPS(t)
	b, err := backends.For(mode.MPS)
	if err != nil {
		t.Fatal(err)
	}
	if got := LevelOn(b, "GPU-a"); got != mode.LevelCooperative {
		t.Errorf("level %s", got)
	}
	if err := dir.SetStatus("GPU-a", mps.Status{DriverEnforced: true}); err != nil {
		t.Fatal(err)
	}
	if got := LevelOn(b, "GPU-a"); got != mode.LevelDriver {
		t.Errorf("level %s", got)
	}
	if got := LevelOn(noLimits{name: mode.IsolationNone}, "GPU-a"); got != mode.LevelNone {
		t.Errorf("level %s", got)
	}
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
		if err := dir.SetStatus(uuid, mps.Status{State: mps.Ready}); err != nil {
			t.Fatal(err)
		}
	}
	grants := ofNode(grant(mode.CoreMem, 0, 3, 25), grant(mode.CoreMem, 2, 2, 25))
	c, err := ForClaim(backends, "c1", grants, nil)
	if err != nil {
		t.Fatal(err)
	}
	parts, err := Parts(backends, "claim", grants)
	if err := errors.Join(err, c.Check(), c.SetUp(t.Context()), CheckContainer(parts)); err != nil {
		t.Fatal(err)
	}
	_, edits, err := c[0].Edits()
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"CUDA_MPS_PIPE_DIRECTORY=/run/gpushare/mps",
		"CUDA_VISIBLE_DEVICES=GPU-a,GPU-c", "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=GPU-a=3726M,GPU-c=2650M",
		"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=25"},
		edits.Env); diff != "" {
		t.Errorf("environment (-want +got):\n%s", diff)
	}
	if len(edits.Mounts) != 1 || edits.Mounts[0].HostPath != dir.PipeDir("GPU-c") {
		t.Errorf("mounts %+v", edits.Mounts)
	}
	want := map[string]mps.Limits{"GPU-a": {MemoryMiB: 3726, ThreadPercent: 25}, "GPU-c": {MemoryMiB: 2650,
		ThreadPercent: 25}}
	if diff := cmp.Diff(want, c.NodeMPSLimits()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if own := c.MPSLimits(); len(own) > 0 {
		t.Errorf("limits of daemons of single GPUs: %v", own)
	}
	for uuid, limits := range want {
		use, err := dir.Use(uuid)
		if diff := cmp.Diff(mps.Use{Claimed: true, Limits: limits, Seq: 1}, use); err != nil || diff != "" {
			t.Errorf("GPU %s: %v (-want +got):\n%s", uuid, err, diff)
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
		b := mpsBackend{name: mode.IsolationMPSNode, dir: "/run/mps", check: "/gpu-mps-check", containers: 4}
		edits, err := b.Edits(request(tc.grants...))
		if err != nil || len(edits.Hooks) != 1 {
			t.Fatalf("%s: hooks %v, %v", name, edits.Hooks, err)
		}
		hook := edits.Hooks[0]
		if diff := cmp.Diff([]string{"gpu-mps-check", "/run/mps", "GPU-b"}, hook.Args); diff != "" {
			t.Errorf("%s: arguments (-want +got):\n%s", name, diff)
		}
		want := append([]string{"MPS_SHARE=s1", "MPS_CONTAINERS=4"}, tc.more...)
		if diff := cmp.Diff(want, hook.Env); diff != "" {
			t.Errorf("%s: environment (-want +got):\n%s", name, diff)
		}
	}
}

func TestOneDaemonGivesAProcessOnePercentage(t *testing.T) {
	backends, dir := byNodeMPS(t)
	for _, uuid := range []string{"GPU-a", "GPU-b"} {
		if err := dir.SetStatus(uuid, mps.Status{State: mps.Ready}); err != nil {
			t.Fatal(err)
		}
	}
	c, err := ForClaim(backends, "c1", ofNode(grant(mode.CoreMem, 0, 3, 25), grant(mode.CoreMem, 1, 3, 50)), nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Check(); err == nil || !strings.Contains(err.Error(),
		"25 percent of the compute of GPU 0 and 50 of GPU 1") {
		t.Errorf("error %v", err)
	}
}

// One GPU of a container whose daemon is down is enough: the daemon is that of all.
func TestEachGPUOfTheOneDaemonIsChecked(t *testing.T) {
	backends, dir := byNodeMPS(t)
	if err := dir.SetStatus("GPU-a", mps.Status{State: mps.Ready}); err != nil {
		t.Fatal(err)
	}
	c, err := ForClaim(backends, "c1", ofNode(grant(mode.MPS, 0, 3, 0), grant(mode.MPS, 1, 3, 0)), nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Check(); err == nil || !strings.Contains(err.Error(),
		"GPU 1: its share could not be limited by mps-node") {
		t.Errorf("error %v", err)
	}
	if beside := c.BesideMPS(); len(beside) > 0 {
		t.Errorf("beside MPS: %q", beside)
	}
}
