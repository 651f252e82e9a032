// SPDX-License-Identifier: Apache-2.0

package admission

import (
	"strings"
	"testing"

	resourceapi "k8s.io/api/resource/v1"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
)

// withNVIDIADRA is a server with the option nvidia-dra.
func withNVIDIADRA(t *testing.T) *server {
	t.Helper()
	const dir = "testdata/deployments/options/nvidia-dra/"
	return shared("nvidia-dra", func() *server {
		return newServerWith(t, decoded(t, dir+"classes.yaml", dir+"policy.yaml", dir+"refuse.yaml"))
	})
}

func ofNVIDIA(name string, amounts ...string) resourceapi.DeviceRequest {
	r := exactlyOf(name, "gpu.nvidia.com")
	if len(amounts) > 0 {
		r.Exactly.Capacity = asking("", amounts...).Exactly.Capacity
	}
	return r
}

// sharedBy is NVIDIA's configuration of requests, which are all if none is named.
func sharedBy(sharing string, requests ...string) resourceapi.DeviceClaimConfiguration {
	return resourceapi.DeviceClaimConfiguration{Requests: requests, DeviceConfiguration: opaque("gpu.nvidia.com",
		`{"apiVersion":"resource.nvidia.com/v1beta1","kind":"GpuConfig","sharing":`+sharing+`}`)}
}

// What asks for a part of a GPU becomes a share with limits, and all else stays a whole one.
func TestClaimsForNVIDIAsDriver(t *testing.T) {
	const (
		long   = `{"strategy":"TimeSlicing","timeSlicingConfig":{"interval":"Long"}}`
		tenGiB = `{"strategy":"MPS","mpsConfig":{"defaultActiveThreadPercentage":50,` +
			`"defaultPinnedDeviceMemoryLimit":"10Gi"}}`
		unsized  = `{"strategy":"MPS","mpsConfig":{"defaultActiveThreadPercentage":50}}`
		ofDevice = `{"strategy":"MPS","mpsConfig":{"defaultPerDevicePinnedMemoryLimit":{"0":"1500Mi"}}}`
	)
	limit := func(of string) string {
		return `{"strategy":"MPS","mpsConfig":{"defaultPinnedDeviceMemoryLimit":"` + of + `"}}`
	}
	type configs = []resourceapi.DeviceClaimConfiguration
	whole := func(name string, amounts ...string) []resourceapi.DeviceRequest {
		return []resourceapi.DeviceRequest{ofNVIDIA(name, amounts...)}
	}
	alternatives := resourceapi.DeviceRequest{Name: "r", FirstAvailable: []resourceapi.DeviceSubRequest{
		{Name: "big", DeviceClassName: "gpu.nvidia.com"},
		{Name: "small", DeviceClassName: "gpu.nvidia.com", Capacity: ofNVIDIA("x", "memory", "4Gi").Exactly.Capacity}}}
	s := withNVIDIADRA(t)
	for name, test := range map[string]struct {
		requests []resourceapi.DeviceRequest
		configs  configs
		want     string
	}{
		"whole":  {requests: whole("r"), want: "gpu.nvidia.com"},
		"a part": {requests: whole("r", "memory", "4Gi"), want: "cgpu.gpu.aliyun.com=4Gi"},
		// NVIDIA's driver counts in steps of 1Mi.
		"a part in MiB":   {requests: whole("r", "memory", "4097Mi"), want: "cgpu.gpu.aliyun.com=5Gi"},
		"less than a GiB": {requests: whole("r", "memory", "512Mi"), want: "cgpu.gpu.aliyun.com=1Gi"},
		"a part of nothing": {requests: whole("r", "memory", "0"),
			want: "request r0: memory 0 is not a whole number of Gi"},
		"time slicing":  {whole("r"), configs{sharedBy(long)}, "gpu.nvidia.com"},
		"MPS":           {whole("r"), configs{sharedBy(tenGiB)}, "mps.gpu.aliyun.com=10Gi"},
		"MPS by device": {whole("r"), configs{sharedBy(ofDevice)}, "mps.gpu.aliyun.com=2Gi"},
		"MPS of a part": {whole("r", "memory", "20Gi"), configs{sharedBy(tenGiB, "r0")}, "mps.gpu.aliyun.com=20Gi"},
		"one of two": {append(whole("ts"), whole("mps")...), configs{sharedBy(long, "r0"), sharedBy(tenGiB, "r1")},
			"gpu.nvidia.com mps.gpu.aliyun.com=10Gi"},
		"an alternative": {requests: []resourceapi.DeviceRequest{alternatives},
			want: "gpu.nvidia.com cgpu.gpu.aliyun.com=4Gi"},
		"of this driver": {requests: []resourceapi.DeviceRequest{exactly("r", "share")}, want: "share.gpu.aliyun.com"},
		"a number of parts": {requests: whole("r", "shares", "1"),
			want: "request r0 asks for a part of a GPU without a size: write capacity"},
		"MPS of no size":           {whole("r"), configs{sharedBy(unsized)}, "request r0 shares a GPU by MPS without a size"},
		"MPS of less than nothing": {whole("r"), configs{sharedBy(limit("-1Gi"))}, "request r0: its memory limit -1Gi"},
		"MPS of nothing":           {whole("r"), configs{sharedBy(limit("0"))}, "request r0: its memory limit 0"},
		"MPS of half a byte":       {whole("r"), configs{sharedBy(limit("500m"))}, "request r0: its memory limit 500m"},
		"MPS of more than is":      {whole("r"), configs{sharedBy(limit("9E"))}, "request r0: its memory limit 9E"},
		"MPS of an endless amount": {whole("r"), configs{sharedBy(limit("1e-999"))}, "request r0: its memory limit 1e-999"},
		"MPS of no amount":         {whole("r"), configs{sharedBy(limit("much"))}, "request r0: its memory limit much"},
		"MPS of bytes":             {whole("r"), configs{sharedBy(limit("1e3"))}, "mps.gpu.aliyun.com=1Gi"},
		"sharing in one word":      {whole("r"), configs{sharedBy(`"MPS"`)}, "gpu.nvidia.com"},
		"sharing that is left out": {whole("r"), configs{sharedBy("null")}, "gpu.nvidia.com"},
		"requests left out":        {},
		"passthrough": {requests: []resourceapi.DeviceRequest{exactlyOf("r", "vfio.gpu.nvidia.com")},
			want: "request r0: this driver passes no GPU through"},
	} {
		t.Run(name, func(t *testing.T) {
			c := claimWith(team, test.requests...)
			c.Spec.Devices.Config = test.configs
			got := ""
			if admitted, err := s.admitClaim(somebody, c, nil); err != nil {
				got = err.Error()
			} else {
				got = classesAndMemory(admitted)
			}
			if !strings.Contains(got, test.want) || !strings.Contains(test.want, "request") && got != test.want {
				t.Errorf("got %q, want %q", got, test.want)
			}
		})
	}
}

// Templates are refused in the same words, before a pod waits for their claims. Those without requests are nobody's.
func TestTemplatesForNVIDIAsDriver(t *testing.T) {
	s := withNVIDIADRA(t)
	expect.Error(t, s.validate(somebody, claimTemplate("none", claimed()), nil))
	odd := claimed(ofNVIDIA("r"))
	odd.Config = []resourceapi.DeviceClaimConfiguration{sharedBy(
		`{"strategy":"MPS","mpsConfig":{"defaultPinnedDeviceMemoryLimit":"-1Gi"}}`)}
	expect.Error(t, s.validate(somebody, claimTemplate("odd", odd), nil), "request r: its memory limit -1Gi")
}

func exactlyOf(name, class string) resourceapi.DeviceRequest {
	return resourceapi.DeviceRequest{Name: name, Exactly: &resourceapi.ExactDeviceRequest{DeviceClassName: class}}
}

// classesAndMemory are "CLASS" or "CLASS=MEMORY" of each of the claim's requests and alternatives.
func classesAndMemory(c *resourceapi.ResourceClaim) string {
	var parts []string
	add := func(class string, capacity *resourceapi.CapacityRequirements) {
		if capacity != nil {
			memory := capacity.Requests["memory"]
			class += "=" + memory.String()
		}
		parts = append(parts, class)
	}
	for _, r := range c.Spec.Devices.Requests {
		if r.Exactly != nil {
			add(r.Exactly.DeviceClassName, r.Exactly.Capacity)
		}
		for _, s := range r.FirstAvailable {
			add(s.DeviceClassName, s.Capacity)
		}
	}
	return strings.Join(parts, " ")
}
