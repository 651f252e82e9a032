// SPDX-License-Identifier: Apache-2.0

package prepare

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
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
	n, d := slicingNode(t, "Long")
	uuid := machine().GPUs[0].UUID
	is := func(what string, want v1alpha1.TimeSlice) {
		t.Helper()
		expect.Equal(t, map[string]v1alpha1.TimeSlice{uuid: want}, d.set, "time slices %s", what)
	}
	prepare := func(uid string) {
		t.Helper()
		n.takes(t, sharesOf(uid, 0, 2))
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
	n.givesBack(t, "u2")
	is("without the one of the shortest", "Long")
	n.givesBack(t, "u1")
	is("with nobody who asks", "Default")
}

// Who asks for none has nothing set, and a driver that cannot is not asked.
func TestNoTimeSliceSetsNothing(t *testing.T) {
	n, d := slicingNode(t, v1alpha1.TimeSliceDefault)
	d.err = errors.New("asked")
	n.takes(t, sharesOf("u1", 0, 2))
	expect.NoError(t, n.Unprepare(t.Context(), "u1"))
}

func TestTimeSliceThatCannotBeSetIsRefused(t *testing.T) {
	n, d := slicingNode(t, "Short")
	d.err = fmt.Errorf("%w: Not Supported", gpu.ErrNoTimeSlices)
	n.refuses(t, sharesOf("u1", 0, 2), "gpu.aliyun.com/time-slice", "Not Supported")
	n.leavesNothing(t)
}

// A driver that does not answer is asked again; a GPU that cannot have time slices any more keeps no claim.
func TestTimeSliceThatCannotBeGivenBack(t *testing.T) {
	n, d := slicingNode(t, "Short")
	n.takes(t, sharesOf("u1", 0, 2))
	d.err = errors.New("hangs")
	expect.Error(t, n.Unprepare(t.Context(), "u1"), "give the GPU's time slice back: hangs")
	d.err = gpu.ErrNoTimeSlices
	expect.NoError(t, n.Unprepare(t.Context(), "u1"))
	n.leavesNothing(t)
}

// Wherever a process is killed, the next one leaves GPUs as the prepared claims want them.
func TestTimeSliceOfAKilledPreparationIsGivenBack(t *testing.T) {
	var d *driverSlices
	slicing := func(t *testing.T) (n *node) {
		n, d = slicingNode(t, "Short")
		return n
	}
	mortal := func(n *node, k *killer) { d.killer, n.options.TimeSlices = k, d }
	killedAtEachStep(t, wholeGPUs("u1", 0, 1), slicing, mortal, func(t *testing.T, n *node, operation string) {
		if operation == "unprepare" {
			n.givesBack(t, "u1")
		}
		want := map[bool]v1alpha1.TimeSlice{true: "Short", false: "Default"}[len(n.records(t)) > 0]
		for uuid, slice := range d.set {
			expect.Equal(t, want, slice, "time slice of GPU %s", uuid)
		}
	})
}

// Parameters for NVIDIA's driver count where the node serves its claims, and are another driver's elsewhere.
func TestParametersForNVIDIAsDriver(t *testing.T) {
	for name, tc := range map[string]struct {
		sharing    string
		slice, err string
	}{
		"time slice": {sharing: `{"strategy":"TimeSlicing","timeSlicingConfig":{"interval":"Long"}}`, slice: "Long"},
		"MPS without MPS": {sharing: `{"strategy":"MPS"}`, err: `request "gpu": processMemory and threadPercentage ` +
			`(defaultPinnedDeviceMemoryLimit and defaultActiveThreadPercentage of NVIDIA's strategy MPS) are limits of MPS`},
		"not understood": {sharing: `{"strategy":"Passthrough"}`, err: `sharing.strategy is "Passthrough"`},
	} {
		for _, served := range []bool{true, false} {
			t.Run(name, func(t *testing.T) {
				n, d := slicingNode(t, "Default")
				n.options.NVIDIA = served
				c := configuredFor(wholeGPUs("u1", 0), "gpu.nvidia.com",
					`{"apiVersion":"resource.nvidia.com/v1beta1","kind":"GpuConfig","sharing":`+tc.sharing+`}`)
				if !served {
					tc.slice, tc.err = "", ""
				}
				n.refuses(t, c, tc.err)
				expect.Equal(t, tc.slice, string(d.set[machine().GPUs[0].UUID]), "time slice where it is served: %t", served)
			})
		}
	}
}
