// SPDX-License-Identifier: Apache-2.0

package prepare

import "testing"

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
				if got := d.set[machine().GPUs[0].UUID]; string(got) != tc.slice {
					t.Errorf("served: %t: time slice %q, want %q", served, got, tc.slice)
				}
			})
		}
	}
}
