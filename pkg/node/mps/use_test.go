// SPDX-License-Identifier: Apache-2.0

package mps

import (
	"context"
	"errors"
	"os"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
)

func TestWith(t *testing.T) {
	first := Use{Reserved: true}.With(Limits{MemoryMiB: 1024, ThreadPercent: 25})
	expect.Equal(t, Use{Reserved: true, Claimed: true, Limits: Limits{1024, 25}}, first, "use")
	expect.Equal(t, Limits{1024, 50}, first.With(Limits{512, 50}).Limits, "limits")
	expect.Equal(t, first, first.With(Limits{512, 5}), "a smaller claim makes it")
}

// Without a supervisor that says what it has done about it, as of an earlier version,
// nothing is waited for.
func TestAdmitWithAnEarlierSupervisor(t *testing.T) {
	d := held(t)
	set(t, d, Status{State: Ready})
	expect.NoError(t, d.Admit(t.Context(), testGPU, Limits{1024, 100}))
	if u := useOf(t, d); !u.Claimed || u.MemoryMiB != 1024 {
		t.Errorf("%+v", u)
	}
}

func TestAdmits(t *testing.T) {
	reserved := Use{Reserved: true, Seq: 3}
	now := reserved.With(Limits{2048, 50})
	now.Seq = 4
	for name, tc := range map[string]struct {
		status Status
		before Use
		want   bool
	}{
		"done":                         {Status{State: Ready, Use: &now, InForce: Limits{2048, 50}}, reserved, true},
		"not ready":                    {Status{State: Down, Use: &now, InForce: Limits{2048, 50}}, reserved, false},
		"nothing to be raised":         {Status{State: Ready, Use: &reserved, InForce: Limits{4096, 100}}, reserved, true},
		"without limits yet":           {Status{State: Ready, Use: &reserved}, reserved, true},
		"memory to be raised":          {Status{State: Ready, Use: &reserved, InForce: Limits{1024, 100}}, reserved, false},
		"compute to be raised":         {Status{State: Ready, Use: &reserved, InForce: Limits{2048, 25}}, reserved, false},
		"to be closed to others first": {Status{State: Ready, Use: &Use{Seq: 3}}, Use{Seq: 3}, false},
		// It may be about to be lowered, or opened to others.
		"something else is under way": {Status{State: Ready, Use: &Use{Reserved: true, Seq: 2}, InForce: Limits{4096, 100}},
			reserved, false},
	} {
		t.Run(name, func(t *testing.T) {
			expect.Equal(t, tc.want, tc.status.admits(tc.before, now, Limits{2048, 50}), "it is admitted")
		})
	}
}

// A supervisor of an earlier version does not write that others have some of the GPU.
func TestAdmitsBesideOthersByAnEarlierSupervisor(t *testing.T) {
	before := Use{Beside: true, Seq: 3}
	now := before.With(Limits{2048, 50})
	now.Seq = 4
	for seq, want := range map[int64]bool{3: false, 4: true} {
		told := now
		told.Beside, told.Seq = false, seq
		s := Status{State: Ready, Use: &told, InForce: Limits{2048, 50}}
		expect.Equal(t, want, s.admits(before, now, Limits{2048, 50}), "set up for use %d", seq)
	}
}

// held is a directory with a supervisor.
func held(t testing.TB) Dir {
	t.Helper()
	d := Dir(t.TempDir())
	hold(t, d)
	return d
}

// notWritten checks that nothing was written of a GPU that MPS is not used on.
func notWritten(t *testing.T, d Dir, uuid string) {
	t.Helper()
	_, err := os.Stat(d.gpu(uuid))
	expect.ErrorIs(t, err, os.ErrNotExist)
}

func useOf(t *testing.T, d Dir) Use {
	t.Helper()
	u, err := d.Use(testGPU)
	expect.NoError(t, err)
	return u
}

// What a supervisor said that was killed is not waited for.
func TestAdmitWithoutSupervisor(t *testing.T) {
	d := Dir(t.TempDir())
	set(t, d, Status{State: Ready, Use: &Use{Seq: 3}})
	expect.Error(t, d.Admit(t.Context(), testGPU, Limits{1024, 100}), "does not run")
}

func TestAdmitWaitsNoLongerThanTheClaim(t *testing.T) {
	d := held(t)
	set(t, d, Status{State: Ready, Use: &Use{Seq: 3}})
	over := errors.New("no more time")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(over)
	err := d.Admit(ctx, testGPU, Limits{1024, 100})
	expect.ErrorIs(t, err, over)
	expect.Error(t, err, "1024 MiB")
}

func TestAdmitSaysWhyNot(t *testing.T) {
	d := held(t)
	set(t, d, Status{State: Down, Reason: "processes use it", Use: &Use{}})
	expect.Error(t, d.Admit(t.Context(), testGPU, Limits{1024, 100}), "processes use it")
}

// Claims that are prepared at the same time all have room.
func TestManyAdmitAtOnce(t *testing.T) {
	d := held(t)
	set(t, d, Status{State: Ready})
	var all sync.WaitGroup
	for i := range int64(20) {
		all.Go(func() {
			if err := d.Admit(t.Context(), testGPU, Limits{MemoryMiB: i, ThreadPercent: 20 - i}); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	expect.Equal(t, Limits{19, 20}, useOf(t, d).Limits, "limits")
}

func TestSetUse(t *testing.T) {
	d := Dir(t.TempDir())
	isSet := func(u Use, want bool) {
		t.Helper()
		expect.Equal(t, want, d.UseIsSet(testGPU, u), "%+v is set", u)
	}
	isSet(Use{}, true)
	expect.NoError(t, d.SetUse(testGPU, Use{}))
	notWritten(t, d, testGPU)
	for _, seq := range []int64{1, 1} {
		expect.NoError(t, d.SetUse(testGPU, Use{Reserved: true}))
		expect.Equal(t, Use{Reserved: true, Seq: seq}, useOf(t, d), "use")
	}
	isSet(Use{Reserved: true}, true)
	isSet(Use{}, false)
	// What was removed is written again, also if it was nothing: the supervisor waits for it.
	expect.NoError(t, os.Remove(d.useFile(testGPU)))
	isSet(Use{}, false)
	expect.NoError(t, d.SetUse(testGPU, Use{}))
	expect.Equal(t, Use{Seq: 1}, useOf(t, d), "use")
	// What is damaged is written again.
	expect.NoError(t, os.WriteFile(d.useFile(testGPU), []byte(`{"res`), 0o644))
	if _, err := d.Use(testGPU); err == nil {
		t.Error("a damaged file was read")
	}
	isSet(Use{}, false)
	expect.NoError(t, d.SetUse(testGPU, Use{}))
	expect.Equal(t, false, useOf(t, d).Reserved, "it is reserved")
}

func TestFoundMode(t *testing.T) {
	d := Dir(t.TempDir())
	check := func(known bool, changed int) {
		t.Helper()
		mode, is, err := d.FoundMode(testGPU)
		if err != nil || is != known || known && mode != gpu.ComputeExclusiveProcess {
			t.Errorf("%s, %t, %v", mode, is, err)
		}
		if uuids, err := d.Changed(); err != nil || len(uuids) != changed {
			t.Errorf("changed: %q, %v", uuids, err)
		}
	}
	check(false, 0)
	expect.NoError(t, d.KeepFoundMode(testGPU, gpu.ComputeExclusiveProcess))
	check(true, 1)
	expect.NoError(t, errors.Join(d.ForgetFoundMode(testGPU), d.ForgetFoundMode(testGPU)))
	check(false, 0)
	expect.NoError(t, os.WriteFile(d.foundFile(testGPU), []byte(`{"found":"EV`), 0o644))
	_, _, err := d.FoundMode(testGPU)
	expect.Error(t, err, d.foundFile(testGPU))
}

// What it takes a claim longer to be prepared, where others have the same limits.
func BenchmarkAdmit(b *testing.B) {
	d, l := held(b), Limits{1024, 100}
	use := Use{Reserved: true}.With(l)
	expect.NoError(b, d.SetUse(testGPU, use))
	use.Seq = 1
	expect.NoError(b, d.SetStatus(testGPU, Status{State: Ready, Use: &use, InForce: l}))
	for b.Loop() {
		expect.NoError(b, d.Admit(b.Context(), testGPU, l))
	}
}

// closed is a GPU that the supervisor has closed to others for a claim, and what it was
// told of another one, which it has not.
func closed(t *testing.T, d Dir) {
	t.Helper()
	err := errors.Join(d.SetUse(testGPU, Use{}.With(Limits{1024, 100})), d.KeepFoundMode(testGPU, gpu.ComputeDefault),
		d.SetUse("GPU-free", Use{Reserved: true}))
	expect.NoError(t, err)
}

func TestGPUsAreGivenBackBeforeOthersUseThem(t *testing.T) {
	d := held(t)
	closed(t, d)
	back := make(chan error, 1)
	go func() { back <- d.GiveBack(t.Context(), testGPU, "GPU-free", "GPU-unknown") }()
	// The supervisor, which is told and then puts the mode back.
	for p := (pause{}); useOf(t, d).Guarded(); {
		expect.NoError(t, p.wait(t.Context()))
	}
	select {
	case err := <-back:
		t.Fatalf("before the mode is put back: %v", err)
	default:
	}
	expect.NoError(t, d.ForgetFoundMode(testGPU))
	expect.NoError(t, <-back)
	if u, err := d.Use("GPU-free"); err != nil || !u.Reserved {
		t.Errorf("of a GPU that is not closed: %+v, %v", u, err)
	}
	notWritten(t, d, "GPU-unknown")
}

func TestGPUThatIsNotGivenBack(t *testing.T) {
	for name, tc := range map[string]struct {
		dir  func(*testing.T) Dir
		want string
	}{
		"supervisor does not do it": {func(t *testing.T) Dir { return held(t) },
			"has not put its compute mode back: see its"},
		"no supervisor": {func(t *testing.T) Dir { return Dir(t.TempDir()) }, "does not run on this node"},
	} {
		t.Run(name, func(t *testing.T) {
			d := tc.dir(t)
			closed(t, d)
			synctest.Test(t, func(t *testing.T) {
				err := d.GiveBack(t.Context(), testGPU)
				if err == nil || errors.Is(err, context.DeadlineExceeded) {
					t.Fatalf("error %v", err)
				}
				expect.Error(t, err, tc.want, "waited for 5s", "--id="+testGPU+" --compute-mode=DEFAULT",
					d.foundFile(testGPU))
			})
		})
	}
	t.Run("claim has no more time", func(t *testing.T) {
		d := held(t)
		closed(t, d)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		expect.ErrorIs(t, d.GiveBack(ctx, testGPU), context.Canceled)
	})
}
