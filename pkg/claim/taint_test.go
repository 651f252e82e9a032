// SPDX-License-Identifier: Apache-2.0

package claim

import (
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/utils/ptr"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
)

func TestToleratesSwitch(t *testing.T) {
	result := func(pool string, tolerations ...resourceapi.DeviceToleration) resourceapi.DeviceRequestAllocationResult {
		return resourceapi.DeviceRequestAllocationResult{Driver: "gpu.aliyun.com", Pool: pool, Device: "gpu-0",
			Tolerations: tolerations}
	}
	admin := func(r resourceapi.DeviceRequestAllocationResult) resourceapi.DeviceRequestAllocationResult {
		r.AdminAccess = ptr.To(true)
		return r
	}
	instance := func(r resourceapi.DeviceRequestAllocationResult) resourceapi.DeviceRequestAllocationResult {
		r.Device = "gpu-1-mig-1g-10gb-0"
		return r
	}
	everything := resourceapi.DeviceToleration{Operator: resourceapi.DeviceTolerationOpExists}
	switching := resourceapi.DeviceToleration{Operator: resourceapi.DeviceTolerationOpExists,
		Key: "gpu.aliyun.com/mode-switch", Effect: resourceapi.DeviceTaintEffectNoSchedule}
	other := resourceapi.DeviceToleration{Operator: resourceapi.DeviceTolerationOpExists,
		Key: "gpu.aliyun.com/isolation-unavailable"}
	for name, test := range map[string]struct {
		results []resourceapi.DeviceRequestAllocationResult
		want    bool
	}{
		"nothing":       {nil, false},
		"no toleration": {[]resourceapi.DeviceRequestAllocationResult{result("n1/gpu")}, false},
		"everything":    {[]resourceapi.DeviceRequestAllocationResult{result("n1/gpu", everything)}, true},
		"the switch": {[]resourceapi.DeviceRequestAllocationResult{result("n1/gpu", other, switching)},
			true},
		"something else": {[]resourceapi.DeviceRequestAllocationResult{result("n1/gpu", other)}, false},
		"one of two does not": {[]resourceapi.DeviceRequestAllocationResult{result("n1/gpu", everything), result(
			"n1/gpu")}, false},
		"another node's does not": {[]resourceapi.DeviceRequestAllocationResult{result("n1/gpu", everything), result(
			"n2/gpu")}, true},
		"an administrator's": {[]resourceapi.DeviceRequestAllocationResult{admin(result("n1/gpu", everything))},
			false},
		"an administrator's does not": {[]resourceapi.DeviceRequestAllocationResult{admin(result("n1/gpu")), result("n1/gpu",
			everything)}, true},
		"a MIG instance": {[]resourceapi.DeviceRequestAllocationResult{instance(result("n1/gpu", everything))}, false},
		"a MIG instance does not": {[]resourceapi.DeviceRequestAllocationResult{instance(result("n1/gpu")), result("n1/gpu",
			everything)}, true},
		"only of another node's GPUs": {[]resourceapi.DeviceRequestAllocationResult{result("n2/gpu", everything)}, false},
	} {
		c := &resourceapi.ResourceClaim{}
		if test.results != nil {
			c.Status.Allocation = &resourceapi.AllocationResult{
				Devices: resourceapi.DeviceAllocationResult{Results: test.results}}
		}
		expect.Equal(t, test.want, ToleratesSwitch(c, "n1/gpu"), "%s", name)
	}
}
