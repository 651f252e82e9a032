// SPDX-License-Identifier: Apache-2.0

package claim

import (
	"strings"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/mode"
)

// asks is a configuration of a time slice; empty is none.
func asks(source resourceapi.AllocationConfigSource, slice string) []resourceapi.DeviceAllocationConfiguration {
	if slice == "" {
		return nil
	}
	raw := `{"apiVersion":"gpu.aliyun.com/v1alpha1","kind":"GpuConfig","timeSlice":"` + slice + `"}`
	return []resourceapi.DeviceAllocationConfiguration{{Source: source,
		DeviceConfiguration: resourceapi.DeviceConfiguration{Opaque: &resourceapi.OpaqueDeviceConfiguration{
			Driver: v1alpha1.DriverName, Parameters: runtime.RawExtension{Raw: []byte(raw)}}}}}
}

func TestAskTimeSlices(t *testing.T) {
	for name, tc := range map[string]struct {
		mode               mode.Mode
		admin              bool
		claim, class, node string
		want               v1alpha1.TimeSlice
		err                string
	}{
		"nothing":                        {mode: mode.Exclusive},
		"whole GPU, claim":               {mode: mode.Exclusive, claim: "Short", want: "Short"},
		"whole GPU, claim over class":    {mode: mode.Topology, claim: "Long", class: "Short", want: "Long"},
		"whole GPU, claim over node":     {mode: mode.Exclusive, claim: "Default", node: "Short"},
		"whole GPU, node":                {mode: mode.Exclusive, node: "Medium", want: "Medium"},
		"share, class":                   {mode: mode.Share, class: "Medium", want: "Medium"},
		"share, node":                    {mode: mode.Share, node: "Long", want: "Long"},
		"share, class over node":         {mode: mode.Share, class: "Default", node: "Long"},
		"share, claim":                   {mode: mode.Share, claim: "Short", err: "an administrator"},
		"share, claim against class":     {mode: mode.Share, claim: "Short", class: "Long", err: "timeSlice is Short"},
		"share, claim as class":          {mode: mode.Share, claim: "Short", class: "Short", want: "Short"},
		"share, claim as node":           {mode: mode.Share, claim: "Short", node: "Short", want: "Short"},
		"share, claim that asks nothing": {mode: mode.Share, claim: "Default", node: "Long", want: "Long"},
		"limited share, node":            {mode: mode.MPS, node: "Short"},
		"limited share, claim":           {mode: mode.CGPU, claim: "Short", err: "only whole GPUs"},
		"MIG instance, class":            {mode: mode.MIG, class: "Long", err: "of mode mig"},
		"administrator":                  {mode: mode.Exclusive, admin: true, node: "Short"},
	} {
		t.Run(name, func(t *testing.T) {
			c := &resourceapi.ResourceClaim{Status: resourceapi.ResourceClaimStatus{Allocation: &resourceapi.AllocationResult{}}}
			c.Status.Allocation.Devices.Config = append(asks(resourceapi.AllocationConfigSourceClass, tc.class),
				asks(resourceapi.AllocationConfigSourceClaim, tc.claim)...)
			config, err := configFor(c.Status.Allocation.Devices.Config, resourceapi.DeviceRequestAllocationResult{Request: "r"})
			expect.NoError(t, err)
			grants := []Grant{{Request: "r", Mode: tc.mode, Admin: tc.admin, Config: config}}
			node, err := mode.TimeSliceFromLabels(map[string]string{v1alpha1.LabelTimeSlice: tc.node})
			expect.NoError(t, err)
			err = AskTimeSlices(c, grants, node)
			if (err != nil) != (tc.err != "") || err != nil && !strings.Contains(err.Error(), tc.err) {
				t.Fatalf("error %v, want one that contains %q", err, tc.err)
			}
			expect.Equal(t, tc.want, grants[0].TimeSlice, "it asks for")
		})
	}
}

func TestTheShortestTimeSliceCounts(t *testing.T) {
	of := func(uuid string, slice v1alpha1.TimeSlice) Grant {
		return Grant{GPU: GPU{UUID: uuid}, TimeSlice: slice}
	}
	got := TimeSlices([]Grant{of("a", "Long"), of("a", "Short"), of("a", "Medium"), of("a", ""), of("b", ""),
		of("c", "Medium"), of("c", "Long")})
	want := map[string]v1alpha1.TimeSlice{"a": "Short", "c": "Medium"}
	expect.Equal(t, want, got, "time slices")
}

func TestLabelThatIsNoTimeSlice(t *testing.T) {
	slice, err := mode.TimeSliceFromLabels(map[string]string{v1alpha1.LabelTimeSlice: "short"})
	expect.Error(t, err, `gpu.aliyun.com/time-slice: "short" is no time slice`)
	expect.Equal(t, v1alpha1.TimeSliceDefault, slice, "it comes to")
}
