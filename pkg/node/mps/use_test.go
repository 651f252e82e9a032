// SPDX-License-Identifier: Apache-2.0

package mps

import (
	"context"
	"errors"
	"os"
	"strings"
	"sync"
	"testing"

	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
)

func TestWith(t *testing.T) {
	first := Use{Reserved: true}.With(Limits{MemoryMiB: 1024, ThreadPercent: 25})
	if want := (Use{Reserved: true, Claimed: true, Limits: Limits{1024, 25}}); first != want {
		t.Errorf("%+v, want %+v", first, want)
	}
	if got, want := first.With(Limits{512, 50}).Limits, (Limits{1024, 50}); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
	if got := first.With(Limits{512, 5}); got != first {
		t.Errorf("a smaller claim makes it %+v", got)
	}
}

// Without a supervisor that says what it has done about it, as of an earlier version,
// nothing is waited for.
func TestAdmitWithAnEarlierSupervisor(t *testing.T) {
	d := held(t)
	set(t, d, Status{State: Ready})
	if err := d.Admit(t.Context(), testGPU, Limits{1024, 100}); err != nil {
		t.Error(err)
	}
	if u, err := d.Use(testGPU); err != nil || !u.Claimed || u.MemoryMiB != 1024 {
		t.Errorf("%+v, %v", u, err)
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
			if got := tc.status.admits(tc.before, now, Limits{2048, 50}); got != tc.want {
				t.Errorf("%t, want %t", got, tc.want)
			}
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
		if got := s.admits(before, now, Limits{2048, 50}); got != want {
			t.Errorf("set up for use %d: %t, want %t", seq, got, want)
		}
	}
}

// held is a directory with a supervisor.
func held(t testing.TB) Dir {
	t.Helper()
	d := Dir(t.TempDir())
	release, err := d.Hold()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := release(); err != nil {
			t.Error(err)
		}
	})
	return d
}

// What a supervisor said that was killed is not waited for.
func TestAdmitWithoutSupervisor(t *testing.T) {
	d := Dir(t.TempDir())
	set(t, d, Status{State: Ready, Use: &Use{Seq: 3}})
	err := d.Admit(t.Context(), testGPU, Limits{1024, 100})
	if err == nil || !strings.Contains(err.Error(), "does not run") {
		t.Errorf("error %v", err)
	}
}

func TestAdmitWaitsNoLongerThanTheClaim(t *testing.T) {
	d := held(t)
	set(t, d, Status{State: Ready, Use: &Use{Seq: 3}})
	over := errors.New("no more time")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(over)
	err := d.Admit(ctx, testGPU, Limits{1024, 100})
	if !errors.Is(err, over) || !strings.Contains(err.Error(), "1024 MiB") {
		t.Errorf("error %v", err)
	}
}

func TestAdmitSaysWhyNot(t *testing.T) {
	d := held(t)
	set(t, d, Status{State: Down, Reason: "processes use it", Use: &Use{}})
	err := d.Admit(t.Context(), testGPU, Limits{1024, 100})
	if err == nil || !strings.Contains(err.Error(), "processes use it") {
		t.Errorf("error %v", err)
	}
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
	if u, err := d.Use(testGPU); err != nil || u.Limits != (Limits{19, 20}) {
		t.Errorf("%+v, %v", u, err)
	}
}

func TestSetUse(t *testing.T) {
	d := Dir(t.TempDir())
	isSet := func(u Use, want bool) {
		t.Helper()
		if got := d.UseIsSet(testGPU, u); got != want {
			t.Errorf("%+v is set: %t, want %t", u, got, want)
		}
	}
	isSet(Use{}, true)
	if err := d.SetUse(testGPU, Use{}); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(d.gpu(testGPU)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("something was written of a GPU that MPS is not used on: %v", err)
	}
	for _, seq := range []int64{1, 1} {
		if err := d.SetUse(testGPU, Use{Reserved: true}); err != nil {
			t.Fatal(err)
		}
		if u, err := d.Use(testGPU); err != nil || u != (Use{Reserved: true, Seq: seq}) {
			t.Errorf("%+v, %v", u, err)
		}
	}
	isSet(Use{Reserved: true}, true)
	isSet(Use{}, false)
	// What was removed is written again, also if it was nothing: the supervisor waits for it.
	if err := os.Remove(d.useFile(testGPU)); err != nil {
		t.Fatal(err)
	}
	isSet(Use{}, false)
	if err := d.SetUse(testGPU, Use{}); err != nil {
		t.Fatal(err)
	}
	if u, err := d.Use(testGPU); err != nil || u != (Use{Seq: 1}) {
		t.Errorf("%+v, %v", u, err)
	}
	// What is damaged is written again.
	if err := os.WriteFile(d.useFile(testGPU), []byte(`{"res`), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := d.Use(testGPU); err == nil {
		t.Error("a damaged file was read")
	}
	isSet(Use{}, false)
	if err := d.SetUse(testGPU, Use{}); err != nil {
		t.Fatal(err)
	}
	if u, err := d.Use(testGPU); err != nil || u.Reserved {
		t.Errorf("%+v, %v", u, err)
	}
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
	if err := d.KeepFoundMode(testGPU, gpu.ComputeExclusiveProcess); err != nil {
		t.Fatal(err)
	}
	check(true, 1)
	if err := errors.Join(d.ForgetFoundMode(testGPU), d.ForgetFoundMode(testGPU)); err != nil {
		t.Fatal(err)
	}
	check(false, 0)
	if err := os.WriteFile(d.foundFile(testGPU), []byte(`{"found":"EV`), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, _, err := d.FoundMode(testGPU); err == nil || !strings.Contains(err.Error(), d.foundFile(testGPU)) {
		t.Errorf("a damaged file: %v", err)
	}
}

// What it takes a claim longer to be prepared, where others have the same limits.
func BenchmarkAdmit(b *testing.B) {
	d, l := held(b), Limits{1024, 100}
	use := Use{Reserved: true}.With(l)
	if err := d.SetUse(testGPU, use); err != nil {
		b.Fatal(err)
	}
	use.Seq = 1
	if err := d.SetStatus(testGPU, Status{State: Ready, Use: &use, InForce: l}); err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		if err := d.Admit(b.Context(), testGPU, l); err != nil {
			b.Fatal(err)
		}
	}
}
