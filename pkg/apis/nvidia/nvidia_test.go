// SPDX-License-Identifier: Apache-2.0

package nvidia

import (
	"strings"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
)

// parameters are NVIDIA's, with these fields of sharing.
func parameters(kind, sharing string) string {
	if sharing != "" {
		sharing = `,"sharing":{` + sharing + `}`
	}
	return `{"apiVersion":"resource.nvidia.com/v1beta1","kind":"` + kind + `"` + sharing + `}`
}

// The parameters are those of the examples of NVIDIA's driver.
func TestDecode(t *testing.T) {
	for name, tc := range map[string]struct{ kind, sharing, slice, memory, percent string }{
		"nothing":        {kind: "GpuConfig"},
		"time slices":    {kind: "GpuConfig", sharing: `"strategy":"TimeSlicing"`},
		"empty, not nil": {kind: "GpuConfig", sharing: `"strategy":"TimeSlicing","timeSlicingConfig":{}`},
		"a time slice": {kind: "GpuConfig", sharing: `"strategy":"TimeSlicing","timeSlicingConfig":{"interval":"Long"}`,
			slice: "Long"},
		"MPS": {kind: "GpuConfig", sharing: `"strategy":"MPS","mpsConfig":{"defaultActiveThreadPercentage":50,` +
			`"defaultPinnedDeviceMemoryLimit":"10Gi"}`, memory: "10Gi", percent: "50"},
		"MPS of its one GPU": {kind: "GpuConfig", sharing: `"strategy":"MPS","mpsConfig":{` +
			`"defaultPinnedDeviceMemoryLimit":"10Gi","defaultPerDevicePinnedMemoryLimit":{"0":"6Gi"},"multiUser":true}`,
			memory: "6Gi", percent: "100"},
		"MPS and no limits": {kind: "GpuConfig", sharing: `"strategy":"MPS"`, percent: "100"},
		"MIG":               {kind: "MigDeviceConfig", sharing: `"strategy":"TimeSlicing"`},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := Decode([]byte(parameters(tc.kind, tc.sharing)))
			expect.NoError(t, err)
			want := `{"apiVersion":"gpu.aliyun.com/v1alpha1","kind":"GpuConfig"`
			if tc.slice != "" {
				want += `,"timeSlice":"` + tc.slice + `"`
			}
			if tc.memory != "" {
				want += `,"processMemory":"` + tc.memory + `"`
			}
			if tc.percent != "" {
				want += `,"threadPercentage":` + tc.percent
			}
			expected, err := v1alpha1.Decode([]byte(want + "}"))
			expect.NoError(t, err)
			expect.Equal(t, show(expected), show(got), "the claim")
		})
	}
}

func show(c v1alpha1.GpuConfig) string {
	var parts []string
	if c.TimeSlice != nil {
		parts = append(parts, string(*c.TimeSlice))
	}
	if c.ProcessMemory != nil {
		parts = append(parts, c.ProcessMemory.String())
	}
	if c.ThreadPercentage != nil {
		parts = append(parts, strings.Repeat("%", int(*c.ThreadPercentage)))
	}
	return strings.Join(parts, " ")
}

func TestDecodeRefuses(t *testing.T) {
	for name, tc := range map[string]struct{ raw, want string }{
		"passthrough": {parameters("VfioDeviceConfig", ""), `kind "VfioDeviceConfig": this driver understands NVIDIA's`},
		"another version": {`{"apiVersion":"resource.nvidia.com/v1","kind":"GpuConfig"}`,
			`apiVersion "resource.nvidia.com/v1"`},
		"misspelt":    {parameters("GpuConfig", `"strategie":"MPS"`), `unknown field "sharing.strategie"`},
		"no strategy": {parameters("GpuConfig", `"mpsConfig":{}`), `sharing.strategy is ""`},
		"interval": {parameters("GpuConfig", `"strategy":"TimeSlicing","timeSlicingConfig":{"interval":"Huge"}`),
			`timeSlice is "Huge"`},
		"both": {parameters("GpuConfig", `"strategy":"MPS","timeSlicingConfig":{}`), "leave timeSlicingConfig out"},
		"two GPUs": {parameters("GpuConfig",
			`"strategy":"MPS","mpsConfig":{"defaultPerDevicePinnedMemoryLimit":{"1":"6Gi"}}`), `names device "1"`},
		"endless memory": {parameters("GpuConfig",
			`"strategy":"MPS","mpsConfig":{"defaultPinnedDeviceMemoryLimit":"1e-999999999"}`), "has an exponent"},
		"endless memory of a GPU": {parameters("GpuConfig",
			`"strategy":"MPS","mpsConfig":{"defaultPerDevicePinnedMemoryLimit":{"0":"1e-999999999"}}`), "has an exponent"},
		"percentage": {parameters("GpuConfig", `"strategy":"MPS","mpsConfig":{"defaultActiveThreadPercentage":0}`),
			"threadPercentage is 0"},
		"MPS on MIG": {parameters("MigDeviceConfig", `"strategy":"MPS"`), "MPS on MIG instances is not offered"},
		"interval on MIG": {parameters("MigDeviceConfig", `"strategy":"TimeSlicing","timeSlicingConfig":{}`),
			"no time slices of their own"},
		"no object": {`[]`, "not a JSON object"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Decode([]byte(tc.raw))
			expect.Error(t, err, tc.want)
		})
	}
}

// What is addressed to others stays, also what is to this driver, and the claim itself does.
func TestTranslate(t *testing.T) {
	c := &resourceapi.ResourceClaim{Status: resourceapi.ResourceClaimStatus{Allocation: &resourceapi.AllocationResult{}}}
	for _, driver := range []string{"gpu.aliyun.com", "gpu.nvidia.com", "nic.example.com"} {
		c.Status.Allocation.Devices.Config = append(c.Status.Allocation.Devices.Config,
			resourceapi.DeviceAllocationConfiguration{Requests: []string{driver},
				DeviceConfiguration: resourceapi.DeviceConfiguration{Opaque: &resourceapi.OpaqueDeviceConfiguration{
					Driver: driver, Parameters: runtime.RawExtension{Raw: []byte(parameters("GpuConfig", ""))}}}})
	}
	before := c.DeepCopy()
	got, err := Translate(c)
	expect.NoError(t, err)
	var drivers []string
	for i, config := range got.Status.Allocation.Devices.Config {
		drivers = append(drivers, config.Opaque.Driver)
		expect.Equal(t, before.Status.Allocation.Devices.Config[i].Requests[0], config.Requests[0],
			"configuration %d is of requests %q", i, config.Requests)
	}
	expect.Equal(t, "gpu.aliyun.com gpu.aliyun.com nic.example.com", strings.Join(drivers, " "), "drivers %q", drivers)
	if c.Status.Allocation.Devices.Config[1].Opaque.Driver != before.Status.Allocation.Devices.Config[1].Opaque.Driver {
		t.Error("the claim itself was changed")
	}
}
