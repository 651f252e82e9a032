// SPDX-License-Identifier: Apache-2.0

package mps

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
)

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
