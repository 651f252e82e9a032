// SPDX-License-Identifier: Apache-2.0

package prepare

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"

	"github.com/gpushare/dra-driver-gpushare/cdi"
	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/pkg/claim"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
	"github.com/gpushare/dra-driver-gpushare/pkg/held"
	"github.com/gpushare/dra-driver-gpushare/pkg/mode"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/mps"
)

// fakeMPS notes which GPUs are to be given back.
type fakeMPS struct {
	asked []string
	err   error
}

func (f *fakeMPS) GiveBack(_ context.Context, uuids ...string) error {
	f.asked = append(f.asked, uuids...)
	return f.err
}

// A GPU that was MPS' until a moment ago refuses all other programs.
func TestGPUsAreOpenedThatAreNotUsedByMPS(t *testing.T) {
	for name, tc := range map[string]struct {
		claim *resourceapi.ResourceClaim
		want  []string
	}{
		"shares of a GPU":       {sharesOf("u1", 2, 1, 7), []string{"GPU-2"}},
		"whole GPUs":            {wholeGPUs("u1", 1, 3), []string{"GPU-1", "GPU-3"}},
		"shares by HAMi":        {on(sharesOf("u1", 0, 1), "gpu-0-cgpu"), []string{"GPU-0"}},
		"shares by MPS":         {on(sharesOf("u1", 0, 1), "gpu-0-mps"), nil},
		"an administrator's":    {forAdmin(sharesOf("u1", 0, 1)), nil},
		"by MPS without limits": {switchedOff(on(sharesOf("u1", 0, 1), "gpu-0-mps")), nil},
	} {
		t.Run(name, func(t *testing.T) {
			n := limitedNode(t, []*resourceapi.ResourceClaim{tc.claim})
			asked := &fakeMPS{}
			n.options.MPS = asked
			n.takes(t, tc.claim)
			expect.Equal(t, tc.want, asked.asked, "asked for")
		})
	}
}

func TestClaimIsRefusedWhoseGPUIsNotOpened(t *testing.T) {
	n := newNode(t)
	closed := &fakeMPS{err: errors.New("still closed")}
	n.options.MPS = closed
	err := n.refuses(t, sharesOf("u1", 0, 1), "still closed")
	expect.ErrorIs(t, err, closed.err)
	expect.Equal(t, ReasonNotStartable, ReasonOf(err), "the reason")
	n.leavesNothing(t)
	// A claim that MPS still has the GPU for is in the way, and not the one to be ended.
	closed.err, closed.asked = nil, nil
	n = limitedNode(t, nil)
	n.options.MPS = closed
	n.takes(t, on(sharesOf("u1", 0, 1), "gpu-0-mps"))
	n.refuses(t, sharesOf("u2", 0, 1), "promised twice")
	expect.Equal(t, nil, closed.asked, "asked for")
}

// The directory that plugin and supervisor share does not survive a reboot, and Recover
// writes the specs.
func TestMPSIsToldOfClaimsThatArePreparedAgain(t *testing.T) {
	c := on(sharesOf("u1", 0, 2), "gpu-0-mps")
	n := limitedNode(t, []*resourceapi.ResourceClaim{c})
	dir, _ := n.supervised(t)
	prepared := func() {
		t.Helper()
		n.takes(t, c)
		want := mps.Use{Claimed: true, Limits: mps.Limits{MemoryMiB: 2150, ThreadPercent: 100}, Seq: 1}
		if use, err := dir.Use("GPU-0"); err != nil || use != want {
			t.Errorf("%+v, %v, want %+v", use, err, want)
		}
	}
	prepared()
	expect.NoError(t, os.Remove(filepath.Join(string(dir), "GPU-0", mps.UseFile)))
	expect.NoError(t, n.Recover(t.Context()))
	prepared()
}

// gpu-mps-supervisor is gone and does not come back. What is prepared stays so until its pods
// end, and is taken back without it; what would start now is refused, and says why.
func TestSupervisorThatIsGoneForGood(t *testing.T) {
	running, later := on(sharesOf("u1", 0, 2), "gpu-0-mps"), on(sharesOf("u2", 0, 1), "gpu-0-mps")
	n := limitedNode(t, []*resourceapi.ResourceClaim{running, later})
	dir, release := n.supervised(t)
	n.options.MPS = dir
	n.takes(t, running)
	before := n.files(t)
	expect.NoError(t, release())
	for _, c := range []*resourceapi.ResourceClaim{running, later} {
		err := n.refuses(t, c, "gpu-mps-supervisor does not run on this node")
		expect.Equal(t, ReasonNotStartable, ReasonOf(err), "the reason of claim %s", c.UID)
	}
	expect.Equal(t, before, n.files(t), "what is prepared")
	n.givesBack(t, running.UID)
	n.leavesNothing(t)
	// It has not changed the GPU's compute mode, so others can have the GPU.
	n.takes(t, wholeGPUs("u3", 0)) // a claim without MPS
	// If it has, they say what to do.
	n.givesBack(t, "u3")
	expect.NoError(t, dir.KeepFoundMode("GPU-0", gpu.ComputeDefault))
	short, cancel := context.WithCancel(t.Context())
	n.options.MPS = endsIn{n.options.MPS, cancel}
	_, err := n.Prepare(short, wholeGPUs("u3", 0))
	expect.Error(t, err, "run nvidia-smi --id=GPU-0 --compute-mode=DEFAULT")
}

// endsIn ends the caller's patience when it waits for a GPU.
type endsIn struct {
	MPS
	end func()
}

func (e endsIn) GiveBack(ctx context.Context, uuids ...string) error {
	e.end()
	return e.MPS.GiveBack(ctx, uuids...)
}

// What is nobody's record may be a claim's that uses MPS.
func TestKnown(t *testing.T) {
	for name, lose := range map[string]func(t *testing.T, n *node){
		"directory removed": func(t *testing.T, n *node) { n.loseState(t) },
		"record removed": func(t *testing.T, n *node) {
			expect.NoError(t, os.Remove(filepath.Join(n.stateDir, "u1.json")))
		},
		"record damaged": func(t *testing.T, n *node) {
			expect.NoError(t, os.Truncate(filepath.Join(n.stateDir, "u1.json"), 20))
		},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t)
			n.prepared(t, sharesOf("u1", 0, 3), wholeGPUs("u2", 1))
			expect.NoError(t, n.Known(t.Context()))
			lose(t, n)
			expect.ErrorIs(t, n.Known(t.Context()), errIncomplete)
			expect.NoError(t, n.repairer().Repair(t.Context()))
			expect.NoErrorf(t, n.Known(t.Context()), "after it was repaired")
		})
	}
}

// The GPU is opened by whoever has closed it.
func TestGPUIsGivenBackByTheSupervisor(t *testing.T) {
	n := newNode(t)
	dir := mps.Dir(t.TempDir())
	n.options.MPS = dir
	expect.NoError(t, dir.KeepFoundMode("GPU-0", gpu.ComputeDefault))
	limit, cancel := context.WithCancel(t.Context())
	cancel()
	inv := n.inventory.Load()
	r, err := n.lostRecord(t.Context(), inv, sharesOf("u1", 0, 1), nil)
	expect.NoError(t, err)
	w, err := n.preparationOf(inv, r)
	expect.NoError(t, err)
	expect.Error(t, n.write(limit, w), "gpu-mps-supervisor does not run")
	if there, err := n.options.Specs.Exists(cdi.SpecName("u1")); err != nil || there {
		t.Errorf("a spec: %t, %v", there, err)
	}
	expect.NoError(t, dir.ForgetFoundMode("GPU-0"))
	expect.NoError(t, n.write(t.Context(), w))
}

// What others hold is not taken by the one daemon for a claim that tolerates the taint which keeps claims off, or was
// allocated before. Where claims use it already it has all GPUs.
func TestOneMPSDaemonGetsNoFirstClaimBesideOthers(t *testing.T) {
	first, second := on(sharesOf("u1", 1, 1), "gpu-1-mps"), on(sharesOf("u2", 1, 1), "gpu-1-mps")
	n, dir := oneDaemonNode(t, []*resourceapi.ResourceClaim{first, second})
	var reserved held.Reserved
	n.reserved = func(context.Context, *gpu.Machine) (held.Reserved, error) { return reserved, nil }
	for name, by := range map[string]held.Reserved{
		"a pod":          reserved.Plus("GPU-0", "old/a", held.Taken{Amount: gpu.Amount{Units: 4}}),
		"another driver": reserved.OfDriver("GPU-0", "gpu.nvidia.com", nil),
	} {
		reserved = by
		err := n.refuses(t, first, "one MPS control daemon", "GPU 0")
		expect.Equal(t, ReasonInUse, ReasonOf(err), "the reason beside %s", name)
		for _, g := range machine().GPUs {
			if use, err := dir.OfNode().Use(g.UUID); err != nil || use != (mps.Use{}) {
				t.Errorf("%s: GPU %d is told to be used as %+v, %v", name, g.Index, use, err)
			}
		}
	}
	n.leavesNothing(t)
	reserved = held.Reserved{}
	n.takes(t, first)
	reserved = reserved.Plus("GPU-0", "old/a", held.Taken{Amount: gpu.Amount{Units: 4}})
	n.takes(t, first, second)
}

// oneDaemonNode is a node with one MPS daemon for all GPUs, which is ready.
func oneDaemonNode(
	t *testing.T, claims []*resourceapi.ResourceClaim, uses ...corev1.ResourceClaim,
) (*node, mps.Dir) {
	t.Helper()
	n := limitedNode(t, claims, uses...)
	n.isolated = map[mode.Mode]string{mode.MPS: mode.IsolationMPSNode}
	dir, _ := n.supervised(t)
	for _, g := range machine().GPUs {
		expect.NoError(t, dir.OfNode().SetStatus(g.UUID, mps.Status{State: mps.Ready}))
	}
	return n, dir
}

// With one daemon for all GPUs a container has several, by a claim that says it in any way.
func TestWithOneMPSDaemonAContainerHasSeveralGPUs(t *testing.T) {
	requests := func() *resourceapi.ResourceClaim { return on(sharesOf("u1", 0, 1, 7), "gpu-0-mps", "gpu-1-mps") }
	oneRequest := requests()
	oneRequest.Status.Allocation.Devices.Results[1].Request = "r0"
	for name, tc := range map[string]struct {
		claim *resourceapi.ResourceClaim
		uses  []corev1.ResourceClaim
	}{
		"a claim":          {requests(), uses("u1")},
		"one by one":       {requests(), uses("u1/r0", "u1/r1")},
		"by configuration": {configured(configured(requests(), "r0", `"container":"a"`), "r1", `"container":"a"`), nil},
		"one request":      {oneRequest, nil},
	} {
		t.Run(name, func(t *testing.T) {
			n, dir := oneDaemonNode(t, []*resourceapi.ResourceClaim{tc.claim}, tc.uses...)
			uuids := []string{"GPU-0", "GPU-1"}
			for range 2 { // the kubelet asks again for a claim that is prepared
				got := n.takes(t, tc.claim)
				want := fmt.Sprintf("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=%s=1075M,%s=7527M", uuids[0], uuids[1])
				for i := range got {
					if env := n.env(t, got[i].CDIDeviceIDs[0]); !slices.Contains(env, want) {
						t.Errorf("environment %q of device %d, want %s in it", env, i, want)
					}
				}
			}
			for i, mib := range []int64{1075, 7527} {
				use, err := dir.OfNode().Use(uuids[i])
				if err != nil || !use.Claimed || use.MemoryMiB != mib {
					t.Errorf("GPU %d is told to be used as %+v, %v", i, use, err)
				}
			}
		})
	}
}

// Who switches limits off is the administrators' to say; what is not off is limited, and the
// pods are told.
func TestWhoSwitchesLimitsOff(t *testing.T) {
	const off, keeps = `"disableIsolation":true`, `"disableIsolation":false`
	byPod := func(n *node) {
		n.api.user.Spec.Containers[0].Env = []corev1.EnvVar{{Name: "CGPU_DISABLE", Value: "true"}}
	}
	byNode := func(n *node) { n.SetIsolationDisabled(true) }
	nothing := func(*node) {}
	share := func() *resourceapi.ResourceClaim { return on(sharesOf("u1", 0, 3), "gpu-0-mps") }
	byClaim := func(fields string) *resourceapi.ResourceClaim { return configured(share(), "r0", fields) }
	byClass := func() *resourceapi.ResourceClaim {
		c := byClaim(off)
		c.Status.Allocation.Devices.Config[0].Source = resourceapi.AllocationConfigSourceClass
		return c
	}
	type who = []claim.LimitsOffBy
	all := who{"", claim.LimitsOffByClaims, claim.LimitsOffByClasses, claim.LimitsOffByNodes}
	for name, tc := range map[string]struct {
		claim *resourceapi.ResourceClaim
		more  func(*node)
		off   who // with these settings the limits are off
		told  who // with these the pods are told that they are not
	}{
		"nobody":                      {share(), nothing, nil, nil},
		"a container":                 {share(), byPod, all[:2], all[2:]},
		"the claim":                   {byClaim(off), nothing, all[:2], all[2:]},
		"the claim, which keeps them": {byClaim(keeps), nothing, nil, nil},
		"the class":                   {byClass(), nothing, all[:3], all[3:]},
		"the class, not the claim":    {configured(byClass(), "r0", keeps), nothing, nil, nil},
		"the class and the claim":     {configured(byClass(), "r0", off), nothing, all[:3], all[3:]},
		"the class and a container":   {byClass(), byPod, all[:3], all[3:]},
		"the node":                    {share(), byNode, all, nil},
		"the node and a container":    {share(), func(n *node) { byPod(n); byNode(n) }, all, nil},
	} {
		for _, setting := range all {
			t.Run(name+" with "+string(setting), func(t *testing.T) {
				n := limitedNode(t, []*resourceapi.ResourceClaim{tc.claim}, corev1.ResourceClaim{Name: "u1"})
				tc.more(n)
				n.options.LimitsOffBy = setting
				got := n.takes(t, tc.claim)
				env := n.env(t, got[0].CDIDeviceIDs[0])
				if limited := slices.Contains(env, "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=3226M"); limited == slices.Contains(
					tc.off, setting) {
					t.Errorf("environment %q", env)
				}
				expect.Equal(t, slices.Contains(tc.off, setting), slices.Contains(env, "CGPU_DISABLE=true"), "environment %q", env)
				var want []string
				if slices.Contains(tc.told, setting) {
					want = []string{"r0"}
				}
				expect.Equal(t, want, n.limitsKept, "told")
			})
		}
	}
}
