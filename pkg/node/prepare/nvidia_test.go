// SPDX-License-Identifier: Apache-2.0

package prepare

import (
	"strings"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/klog/v2/ktesting"
)

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
				_, ctx := ktesting.NewTestContext(t)
				n, d := slicingNode(t, "Default")
				n.options.NVIDIA = served
				c := wholeGPUs("u1", 0)
				c.Status.Allocation.Devices.Config = []resourceapi.DeviceAllocationConfiguration{{
					Source: resourceapi.AllocationConfigSourceClaim, DeviceConfiguration: resourceapi.DeviceConfiguration{
						Opaque: &resourceapi.OpaqueDeviceConfiguration{Driver: "gpu.nvidia.com", Parameters: runtime.RawExtension{
							Raw: []byte(`{"apiVersion":"resource.nvidia.com/v1beta1","kind":"GpuConfig","sharing":` + tc.sharing + `}`)}}}}}
				if !served {
					tc.slice, tc.err = "", ""
				}
				_, err := n.Prepare(ctx, c)
				if (err != nil) != (tc.err != "") || err != nil && !strings.Contains(err.Error(), tc.err) {
					t.Errorf("served: %t: error %v, want one that contains %q", served, err, tc.err)
				}
				if got := d.set[machine().GPUs[0].UUID]; string(got) != tc.slice {
					t.Errorf("served: %t: time slice %q, want %q", served, got, tc.slice)
				}
			})
		}
	}
}
