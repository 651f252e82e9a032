// SPDX-License-Identifier: Apache-2.0

package doctor_test

import (
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
)

func selecting(expression string) []resourceapi.DeviceSelector {
	return []resourceapi.DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{Expression: expression}}}
}

// What means NVIDIA's driver is named where the option has its class, and nowhere else.
func TestWhatMeansNVIDIAsDriver(t *testing.T) {
	for own, want := range map[string][]string{
		`device.driver == "gpu.aliyun.com"`: {"deviceclass/team-gpus", "resourceclaim/a/waits", "node/n7"},
		`device.driver == 'gpu.nvidia.com'`: nil,
	} {
		s := installed(t)
		class := func(name, expression string) *resourceapi.DeviceClass {
			return &resourceapi.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: name},
				Spec: resourceapi.DeviceClassSpec{Selectors: selecting(expression)}}
		}
		s.Classes = append(s.Classes, class("gpu.nvidia.com", own),
			class("team-gpus", `device.driver == 'gpu.nvidia.com' && device.attributes['gpu.nvidia.com'].type == 'gpu'`),
			class("team-h100", `device.driver == "gpu.aliyun.com" && device.attributes["gpu.nvidia.com"].productName == "H100"`))
		waits := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "waits"}}
		waits.Spec.Devices.Requests = []resourceapi.DeviceRequest{{Name: "r", Exactly: &resourceapi.ExactDeviceRequest{
			DeviceClassName: "gpu.nvidia.com", Selectors: selecting(`"gpu.nvidia.com" == device.driver`)}}}
		runs := waits.DeepCopy()
		runs.Name = "runs"
		runs.Status.Allocation = &resourceapi.AllocationResult{Devices: resourceapi.DeviceAllocationResult{
			Results: []resourceapi.DeviceRequestAllocationResult{{Driver: "gpu.nvidia.com", Pool: "n7", Device: "gpu-0"}}}}
		s.Claims = append(s.Claims, waits, runs)
		var found []string
		for _, f := range foundBy("nvidia-dra", s) {
			found = append(found, f.Object)
		}
		expect.Equal(t, want, found, "found with the class %s", own)
	}
}
