// SPDX-License-Identifier: Apache-2.0

package prepare

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/klog/v2/ktesting"

	"github.com/gpushare/dra-driver-gpushare/cdi"
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
			_, ctx := ktesting.NewTestContext(t)
			n := limitedNode(t, []*resourceapi.ResourceClaim{tc.claim})
			asked := &fakeMPS{}
			n.options.MPS = asked
			if _, err := n.Prepare(ctx, tc.claim); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tc.want, asked.asked); diff != "" {
				t.Errorf("asked for (-want +got):\n%s", diff)
			}
		})
	}
}

func TestClaimIsRefusedWhoseGPUIsNotOpened(t *testing.T) {
	_, ctx := ktesting.NewTestContext(t)
	n := newNode(t)
	closed := &fakeMPS{err: errors.New("still closed")}
	n.options.MPS = closed
	_, err := n.Prepare(ctx, sharesOf("u1", 0, 1))
	if !errors.Is(err, closed.err) || ReasonOf(err) != ReasonNotStartable {
		t.Errorf("%v, for reason %q", err, ReasonOf(err))
	}
	if left := n.files(t); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
	// A claim that MPS still has the GPU for is in the way, and not the one to be ended.
	closed.err, closed.asked = nil, nil
	n = limitedNode(t, nil)
	n.options.MPS = closed
	if _, err := n.Prepare(ctx, on(sharesOf("u1", 0, 1), "gpu-0-mps")); err != nil {
		t.Fatal(err)
	}
	if _, err := n.Prepare(ctx, sharesOf("u2", 0, 1)); err == nil || len(closed.asked) > 0 {
		t.Errorf("%v, asked for %q", err, closed.asked)
	}
}

// The directory that plugin and supervisor share does not survive a reboot, and Recover
// writes the specs.
func TestMPSIsToldOfClaimsThatArePreparedAgain(t *testing.T) {
	_, ctx := ktesting.NewTestContext(t)
	c := on(sharesOf("u1", 0, 2), "gpu-0-mps")
	n := limitedNode(t, []*resourceapi.ResourceClaim{c})
	dir := mps.Dir(t.TempDir())
	release, err := dir.Hold()
	if err != nil {
		t.Fatal(err)
	}
	defer release()
	if err := dir.SetStatus("GPU-0", mps.Status{State: mps.Ready}); err != nil {
		t.Fatal(err)
	}
	n.options.Isolation = isolation.NewRegistry(isolation.Config{MPSDir: string(dir), CGPUProc: "/proc/no_such_module"})
	prepared := func() {
		t.Helper()
		if _, err := n.Prepare(ctx, c); err != nil {
			t.Fatal(err)
		}
		want := mps.Use{Claimed: true, Limits: mps.Limits{MemoryMiB: 2150, ThreadPercent: 100}, Seq: 1}
		if use, err := dir.Use("GPU-0"); err != nil || use != want {
			t.Errorf("%+v, %v, want %+v", use, err, want)
		}
	}
	prepared()
	if err := os.Remove(filepath.Join(string(dir), "GPU-0", mps.UseFile)); err != nil {
		t.Fatal(err)
	}
	if err := n.Recover(ctx); err != nil {
		t.Fatal(err)
	}
	prepared()
}

// gpu-mps-supervisor is gone and does not come back. What is prepared stays so until its pods
// end, and is taken back without it; what would start now is refused, and says why.
func TestSupervisorThatIsGoneForGood(t *testing.T) {
	_, ctx := ktesting.NewTestContext(t)
	running, later := on(sharesOf("u1", 0, 2), "gpu-0-mps"), on(sharesOf("u2", 0, 1), "gpu-0-mps")
	n := limitedNode(t, []*resourceapi.ResourceClaim{running, later})
	dir := mps.Dir(t.TempDir())
	release, err := dir.Hold()
	if err != nil {
		t.Fatal(err)
	}
	if err := dir.SetStatus("GPU-0", mps.Status{State: mps.Ready}); err != nil {
		t.Fatal(err)
	}
	n.options.MPS = dir
	n.options.Isolation = isolation.NewRegistry(isolation.Config{MPSDir: string(dir), CGPUProc: "/proc/no_such_module"})
	if _, err := n.Prepare(ctx, running); err != nil {
		t.Fatal(err)
	}
	before := n.files(t)
	if err := release(); err != nil {
		t.Fatal(err)
	}
	for _, c := range []*resourceapi.ResourceClaim{running, later} {
		if _, err := n.Prepare(ctx, c); err == nil || ReasonOf(err) != ReasonNotStartable ||
			!strings.Contains(err.Error(), "gpu-mps-supervisor does not run on this node") {
			t.Errorf("claim %s: %v", c.UID, err)
		}
	}
	if diff := cmp.Diff(before, n.files(t)); diff != "" {
		t.Errorf("what is prepared (-before +now):\n%s", diff)
	}
	if err := n.Unprepare(ctx, running.UID); err != nil {
		t.Fatal(err)
	}
	if left := n.files(t); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
	// It has not changed the GPU's compute mode, so others can have the GPU.
	if _, err := n.Prepare(ctx, wholeGPUs("u3", 0)); err != nil {
		t.Errorf("a claim without MPS: %v", err)
	}
	// If it has, they say what to do.
	if err := errors.Join(n.Unprepare(ctx, "u3"), dir.KeepFoundMode("GPU-0", gpu.ComputeDefault)); err != nil {
		t.Fatal(err)
	}
	short, cancel := context.WithCancel(ctx)
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
			if err := os.Remove(filepath.Join(n.stateDir, "u1.json")); err != nil {
				t.Fatal(err)
			}
		},
		"record damaged": func(t *testing.T, n *node) {
			if err := os.Truncate(filepath.Join(n.stateDir, "u1.json"), 20); err != nil {
				t.Fatal(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			_, ctx := ktesting.NewTestContext(t)
			n := newNode(t)
			n.prepared(t, ctx, sharesOf("u1", 0, 3), wholeGPUs("u2", 1))
			if err := n.Known(ctx); err != nil {
				t.Fatal(err)
			}
			lose(t, n)
			if err := n.Known(ctx); !errors.Is(err, errIncomplete) {
				t.Errorf("error %v", err)
			}
			if err := n.repairer().Repair(ctx); err != nil {
				t.Fatal(err)
			}
			if err := n.Known(ctx); err != nil {
				t.Errorf("after it was repaired: %v", err)
			}
		})
	}
}

// The GPU is opened by whoever has closed it.
func TestGPUIsGivenBackByTheSupervisor(t *testing.T) {
	_, ctx := ktesting.NewTestContext(t)
	n := newNode(t)
	dir := mps.Dir(t.TempDir())
	n.options.MPS = dir
	if err := dir.KeepFoundMode("GPU-0", gpu.ComputeDefault); err != nil {
		t.Fatal(err)
	}
	limit, cancel := context.WithCancel(ctx)
	cancel()
	inv := n.inventory.Load()
	r, err := n.lostRecord(ctx, inv, sharesOf("u1", 0, 1), nil)
	if err != nil {
		t.Fatal(err)
	}
	w, err := n.preparationOf(inv, r)
	if err != nil {
		t.Fatal(err)
	}
	if err := n.write(limit, w); err == nil || !strings.Contains(err.Error(), "gpu-mps-supervisor does not run") {
		t.Errorf("error %v", err)
	}
	if there, err := n.options.Specs.Exists(cdi.SpecName("u1")); err != nil || there {
		t.Errorf("a spec: %t, %v", there, err)
	}
	if err := dir.ForgetFoundMode("GPU-0"); err != nil {
		t.Fatal(err)
	}
	if err := n.write(ctx, w); err != nil {
		t.Error(err)
	}
}
