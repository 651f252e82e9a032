// SPDX-License-Identifier: Apache-2.0

package prepare

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	resourceapi "k8s.io/api/resource/v1"

	"github.com/gpushare/dra-driver-gpushare/cdi"
	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/isolation"
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
	admin := sharesOf("u1", 0, 1)
	admin.Status.Allocation.Devices.Results[0].AdminAccess = new(bool)
	*admin.Status.Allocation.Devices.Results[0].AdminAccess = true
	for name, tc := range map[string]struct {
		claim *resourceapi.ResourceClaim
		want  []string
	}{
		"shares of a GPU":    {sharesOf("u1", 2, 1, 7), []string{"GPU-2"}},
		"whole GPUs":         {wholeGPUs("u1", 1, 3), []string{"GPU-1", "GPU-3"}},
		"shares by HAMi":     {on(sharesOf("u1", 0, 1), "gpu-0-cgpu"), []string{"GPU-0"}},
		"shares by MPS":      {on(sharesOf("u1", 0, 1), "gpu-0-mps"), nil},
		"an administrator's": {admin, nil},
		"by MPS without limits": {configured(on(sharesOf("u1", 0, 1), "gpu-0-mps"), "r0", `"disableIsolation":true`),
			nil},
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
	_, err := n.Prepare(t.Context(), sharesOf("u1", 0, 1))
	if !errors.Is(err, closed.err) || ReasonOf(err) != ReasonNotStartable {
		t.Errorf("%v, for reason %q", err, ReasonOf(err))
	}
	n.leavesNothing(t)
	// A claim that MPS still has the GPU for is in the way, and not the one to be ended.
	closed.err, closed.asked = nil, nil
	n = limitedNode(t, nil)
	n.options.MPS = closed
	n.takes(t, on(sharesOf("u1", 0, 1), "gpu-0-mps"))
	if _, err := n.Prepare(t.Context(), sharesOf("u2", 0, 1)); err == nil || len(closed.asked) > 0 {
		t.Errorf("%v, asked for %q", err, closed.asked)
	}
}

// The directory that plugin and supervisor share does not survive a reboot, and Recover
// writes the specs.
func TestMPSIsToldOfClaimsThatArePreparedAgain(t *testing.T) {
	c := on(sharesOf("u1", 0, 2), "gpu-0-mps")
	n := limitedNode(t, []*resourceapi.ResourceClaim{c})
	dir := mps.Dir(t.TempDir())
	release, err := dir.Hold()
	expect.NoError(t, err)
	defer release()
	expect.NoError(t, dir.SetStatus("GPU-0", mps.Status{State: mps.Ready}))
	n.options.Isolation = isolation.NewRegistry(isolation.Config{MPSDir: string(dir), CGPUProc: "/proc/no_such_module"})
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
	dir := mps.Dir(t.TempDir())
	release, err := dir.Hold()
	expect.NoError(t, err)
	expect.NoError(t, dir.SetStatus("GPU-0", mps.Status{State: mps.Ready}))
	n.options.MPS = dir
	n.options.Isolation = isolation.NewRegistry(isolation.Config{MPSDir: string(dir), CGPUProc: "/proc/no_such_module"})
	n.takes(t, running)
	before := n.files(t)
	expect.NoError(t, release())
	for _, c := range []*resourceapi.ResourceClaim{running, later} {
		if _, err := n.Prepare(t.Context(), c); err == nil || ReasonOf(err) != ReasonNotStartable ||
			!strings.Contains(err.Error(), "gpu-mps-supervisor does not run on this node") {
			t.Errorf("claim %s: %v", c.UID, err)
		}
	}
	expect.Equal(t, before, n.files(t), "what is prepared")
	expect.NoError(t, n.Unprepare(t.Context(), running.UID))
	n.leavesNothing(t)
	// It has not changed the GPU's compute mode, so others can have the GPU.
	n.takes(t, wholeGPUs("u3", 0)) // a claim without MPS
	// If it has, they say what to do.
	expect.NoError(t, errors.Join(n.Unprepare(t.Context(), "u3"), dir.KeepFoundMode("GPU-0", gpu.ComputeDefault)))
	short, cancel := context.WithCancel(t.Context())
	n.options.MPS = endsIn{n.options.MPS, cancel}
	if _, err := n.Prepare(short, wholeGPUs("u3", 0)); err == nil ||
		!strings.Contains(err.Error(), "run nvidia-smi --id=GPU-0 --compute-mode=DEFAULT") {
		t.Errorf("a claim without MPS on a GPU that is closed: %v", err)
	}
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
