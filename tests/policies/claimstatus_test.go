// SPDX-License-Identifier: Apache-2.0

package admission

import (
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/authentication/user"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
)

// The plugin's token is good for what the status of claims says of its own node's devices, whatever feature gates the
// API server has.
func TestPluginWritesStatusOfItsOwnDevices(t *testing.T) {
	s := newServer(t)
	const (
		allocation = "gpu-kubelet-plugin may change neither what a claim was allocated nor who may use it"
		entries    = "gpu-kubelet-plugin on node n1 may only write what a claim's status says of devices of pool n1/gpu"
	)
	entry := func(driver, pool, device string) resourceapi.AllocatedDeviceStatus {
		return resourceapi.AllocatedDeviceStatus{Driver: driver, Pool: pool, Device: device}
	}
	own, more := entry("gpu.aliyun.com", "n1/gpu", "gpu-0"), entry("gpu.aliyun.com", "n1/gpu", "gpu-1")
	changed := *own.DeepCopy()
	changed.Conditions = []metav1.Condition{{Type: "Ready", Status: metav1.ConditionFalse}}
	nic, other := entry("nic.example.com", "n1", "eth0"), entry("gpu.aliyun.com", "n2/gpu", "gpu-0")
	nicChanged := *nic.DeepCopy()
	nicChanged.Conditions = changed.Conditions
	claim := func(devices ...resourceapi.AllocatedDeviceStatus) *resourceapi.ResourceClaim {
		return &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: team, Name: "c"},
			Status: resourceapi.ResourceClaimStatus{Devices: devices,
				ReservedFor: []resourceapi.ResourceClaimConsumerReference{{Resource: "pods", Name: "p", UID: "uid"}},
				Allocation: &resourceapi.AllocationResult{Devices: resourceapi.DeviceAllocationResult{
					Results: []resourceapi.DeviceRequestAllocationResult{{Request: "r", Driver: "gpu.aliyun.com", Pool: "n1/gpu",
						Device: "gpu-0"}}}}}}
	}
	with := func(c *resourceapi.ResourceClaim, change func(*resourceapi.ResourceClaimStatus)) *resourceapi.ResourceClaim {
		change(&c.Status)
		return c
	}
	for name, test := range map[string]struct {
		old, object *resourceapi.ResourceClaim
		refused     string
	}{
		"an entry":                     {claim(), claim(own), ""},
		"a further one":                {claim(own), claim(own, more), ""},
		"a change":                     {claim(nic, own), claim(nic, changed), ""},
		"in another order":             {claim(nic, own), claim(changed, nic), ""},
		"a removal":                    {claim(own, nic), claim(nic), ""},
		"another driver's":             {claim(own), claim(own, nic), entries},
		"a change of another driver's": {claim(nic), claim(nicChanged), entries},
		"a removal of another's":       {claim(own, nic), claim(own), entries},
		"another for another":          {claim(nic), claim(other), entries},
		"another node's":               {claim(), claim(other), entries},
		"a removal of another node's":  {claim(other), claim(), entries},
		"another allocation": {claim(), with(claim(), func(s *resourceapi.ResourceClaimStatus) {
			s.Allocation.Devices.Results[0].Device = "gpu-1"
		}), allocation},
		"an allocation of none": {with(claim(), func(s *resourceapi.ResourceClaimStatus) { s.Allocation = nil }), claim(),
			allocation},
		"no allocation more": {claim(), with(claim(), func(s *resourceapi.ResourceClaimStatus) { s.Allocation = nil }),
			allocation},
		"another pod": {claim(), with(claim(), func(s *resourceapi.ResourceClaimStatus) {
			s.ReservedFor[0].UID = types.UID("another")
		}), allocation},
		"nobody": {claim(), with(claim(), func(s *resourceapi.ResourceClaimStatus) { s.ReservedFor = nil }), allocation},
	} {
		t.Run(name, func(t *testing.T) {
			write := func(who user.Info) error {
				return s.validateSubresource(who, test.object, test.old, "status")
			}
			for _, namespace := range []string{metav1.NamespaceSystem, "other"} {
				expect.Error(t, write(account(namespace, "gpu-kubelet-plugin", "n1")), test.refused)
			}
			expect.Error(t, write(account("other", "nic-plugin", "n1")), "")
		})
	}
	t.Run("a token of no pod", func(t *testing.T) {
		err := s.validateSubresource(account("other", "gpu-kubelet-plugin", ""), claim(own), claim(), "status")
		expect.Error(t, err, "names no node")
	})
}
