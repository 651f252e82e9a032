// SPDX-License-Identifier: Apache-2.0

package prepare

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2/ktesting"

	"github.com/gpushare/dra-driver-gpushare/cdi"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
)

// driverSlices are the GPUs' time slices as the driver has them, which outlive the plugin.
type driverSlices struct {
	set map[string]v1alpha1.TimeSlice
	*killer
	err error
}

func (d *driverSlices) Set(_ context.Context, uuid string, slice v1alpha1.TimeSlice) error {
	if d.err != nil {
		return d.err
	}
	d.point()
	d.set[uuid] = slice
	d.point()
	return nil
}

// slicingNode is a node whose label asks for that time slice.
func slicingNode(t *testing.T, label v1alpha1.TimeSlice) (*node, *driverSlices) {
	t.Helper()
	n := newNode(t)
	d := &driverSlices{set: map[string]v1alpha1.TimeSlice{}, killer: &killer{}}
	n.options.TimeSlices = d
	n.SetTimeSlice(label)
	return n, d
}

// GPUs have what their claims ask for, the shortest of several, as long as the last of them.
func TestTimeSliceLastsAsLongAsItsClaims(t *testing.T) {
	_, ctx := ktesting.NewTestContext(t)
	n, d := slicingNode(t, "Long")
	uuid := machine().GPUs[0].UUID
	is := func(what string, want v1alpha1.TimeSlice) {
		t.Helper()
		if diff := cmp.Diff(map[string]v1alpha1.TimeSlice{uuid: want}, d.set); diff != "" {
			t.Fatalf("time slices %s (-want +got):\n%s", what, diff)
		}
	}
	prepare := func(uid string) {
		t.Helper()
		if _, err := n.Prepare(ctx, sharesOf(uid, 0, 2)); err != nil {
			t.Fatal(err)
		}
	}
	unprepare := func(uid types.UID) {
		t.Helper()
		if err := n.Unprepare(ctx, uid); err != nil {
			t.Fatal(err)
		}
	}
	prepare("u1")
	is("of the first claim", "Long")
	n.SetTimeSlice("Short")
	is("after the label changed", "Long")
	prepare("u2")
	is("with a claim that asks for less", "Short")
	n.SetTimeSlice(v1alpha1.TimeSliceDefault)
	prepare("u3")
	is("with one that asks for nothing", "Short")
	unprepare("u2")
	is("without the one of the shortest", "Long")
	unprepare("u1")
	is("with nobody who asks", "Default")
}

// Who asks for none has nothing set, and a driver that cannot is not asked.
func TestNoTimeSliceSetsNothing(t *testing.T) {
	_, ctx := ktesting.NewTestContext(t)
	n, d := slicingNode(t, v1alpha1.TimeSliceDefault)
	d.err = errors.New("asked")
	if _, err := n.Prepare(ctx, sharesOf("u1", 0, 2)); err != nil {
		t.Fatal(err)
	}
	if err := n.Unprepare(ctx, "u1"); err != nil {
		t.Fatal(err)
	}
}

func TestTimeSliceThatCannotBeSetIsRefused(t *testing.T) {
	_, ctx := ktesting.NewTestContext(t)
	n, d := slicingNode(t, "Short")
	d.err = fmt.Errorf("%w: Not Supported", gpu.ErrNoTimeSlices)
	_, err := n.Prepare(ctx, sharesOf("u1", 0, 2))
	if err == nil || !strings.Contains(err.Error(), "gpu.aliyun.com/time-slice") ||
		!strings.Contains(err.Error(), "Not Supported") {
		t.Errorf("error %v", err)
	}
	if files := n.files(t); len(files) > 0 {
		t.Errorf("left behind: %q", files)
	}
}

// A driver that does not answer is asked again; a GPU that cannot have time slices any more keeps no claim.
func TestTimeSliceThatCannotBeGivenBack(t *testing.T) {
	_, ctx := ktesting.NewTestContext(t)
	n, d := slicingNode(t, "Short")
	if _, err := n.Prepare(ctx, sharesOf("u1", 0, 2)); err != nil {
		t.Fatal(err)
	}
	d.err = errors.New("hangs")
	err := n.Unprepare(ctx, "u1")
	if err == nil || !strings.Contains(err.Error(), "give the GPU's time slice back: hangs") {
		t.Errorf("error %v", err)
	}
	d.err = gpu.ErrNoTimeSlices
	if err := n.Unprepare(ctx, "u1"); err != nil {
		t.Error(err)
	}
	if files := n.files(t); len(files) > 0 {
		t.Errorf("left behind: %q", files)
	}
}

// Wherever a process is killed, the next one leaves GPUs as the prepared claims want them.
func TestTimeSliceOfAKilledPreparationIsGivenBack(t *testing.T) {
	for _, operation := range []string{"prepare", "unprepare"} {
		for step, dead := 1, true; dead; step++ {
			t.Run(fmt.Sprintf("%s/%d", operation, step), func(t *testing.T) {
				_, ctx := ktesting.NewTestContext(t)
				n, d := slicingNode(t, "Short")
				if operation == "unprepare" {
					if _, err := n.Prepare(ctx, wholeGPUs("u1", 0, 1)); err != nil {
						t.Fatal(err)
					}
				}
				d.killer = &killer{countdown: step}
				n.options.Store = mortalStore{n.options.Store.(nodeStore), n.stateDir, d.killer}
				n.options.Specs = mortalSpecs{cdi.Dir(n.cdiDir), d.killer}
				var err error
				dead = runUntilKilled(func() {
					if operation == "unprepare" {
						err = n.Unprepare(ctx, "u1")
					} else {
						_, err = n.Prepare(ctx, wholeGPUs("u1", 0, 1))
					}
				})
				if err != nil {
					t.Fatal(err)
				}
				n.restart(t)
				d.killer, n.options.TimeSlices = &killer{}, d
				if err := n.Recover(ctx); err != nil {
					t.Fatal(err)
				}
				if operation == "unprepare" {
					if err := n.Unprepare(ctx, "u1"); err != nil {
						t.Fatal(err)
					}
				}
				records, err := n.Prepared(ctx)
				if err != nil {
					t.Fatal(err)
				}
				for uuid, slice := range d.set {
					if want := map[bool]v1alpha1.TimeSlice{true: "Short", false: "Default"}[len(records) > 0]; slice != want {
						t.Errorf("GPU %s has %s with %d claims, want %s", uuid, slice, len(records), want)
					}
				}
			})
		}
	}
}
