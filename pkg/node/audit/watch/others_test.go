// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"errors"
	"testing"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/utils/ptr"

	"github.com/gpushare/dra-driver-gpushare/internal/apitest"
	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/internal/reporttest"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/audit"
)

// allocated is claim "a" with a device of that driver.
func allocated(driver, device string) *resourceapi.ResourceClaim {
	return &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "a"},
		Status: resourceapi.ResourceClaimStatus{Allocation: &resourceapi.AllocationResult{
			Devices: resourceapi.DeviceAllocationResult{Results: []resourceapi.DeviceRequestAllocationResult{
				{Driver: driver, Pool: "n", Device: device}}}}}}
}

// slice is what that driver publishes of the node: the GPU, and a network card.
func slice(driver string) *resourceapi.ResourceSlice {
	value := func(v string) map[resourceapi.QualifiedName]resourceapi.DeviceAttribute {
		return map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{"uuid": {StringValue: &v}}
	}
	return &resourceapi.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: "s"}, Spec: resourceapi.ResourceSliceSpec{
		Driver: driver, NodeName: ptr.To("n"), Pool: resourceapi.ResourcePool{Name: "n"}, Devices: []resourceapi.Device{
			{Name: "gpu-0", Attributes: value(uuid)}, {Name: "nic-0", Attributes: value("nic")}}}}
}

// A pod that another driver gave the GPU is none of ours; one with a network GPU is.
func TestClaimsOfOtherDrivers(t *testing.T) {
	for name, tc := range map[string]struct {
		claim *resourceapi.ResourceClaim
		told  bool
	}{
		"that GPU":                  {allocated("gpu.nvidia.com", "gpu-0"), false},
		"another device":            {allocated("gpu.nvidia.com", "nic-0"), true},
		"this driver, not recorded": {allocated("gpu.aliyun.com", "gpu-0"), false},
		"nothing": {&resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "team",
			Name: "a"}}, true},
		"a claim that does not exist": {&resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "team",
			Name: "b"}}, true},
	} {
		t.Run(name, func(t *testing.T) {
			m := newMachine(t, nil, tc.claim, slice("gpu.nvidia.com"))
			m.claims = nil
			m.looks(10)
			if tc.told {
				reporttest.Told(t, m.pods, "GPUUsedWithoutGrant")
			}
			reporttest.Told(t, m.pods)
			gets := 0
			for _, a := range m.client.Actions() {
				if a.Matches("get", "resourceclaims") {
					gets++
				}
			}
			expect.Equal(t, 1, gets, "times the claim was read")
		})
	}
	t.Run("it cannot be read", func(t *testing.T) {
		m := newMachine(t, nil)
		m.claims = nil
		apitest.Answer(m.client, "get", "resourceclaims", func(clienttesting.Action) (bool, runtime.Object, error) {
			return true, nil, errors.New("down")
		})
		m.looks(10)
		reporttest.Told(t, m.pods)
	})
	t.Run("its driver is away", func(t *testing.T) {
		m := newMachine(t, nil, allocated("gpu.nvidia.com", "gpu-0"))
		m.claims = nil
		m.looks(10)
		reporttest.Told(t, m.pods)
	})
	t.Run("its driver has withdrawn the device", func(t *testing.T) {
		m := newMachine(t, nil, allocated("gpu.nvidia.com", "gpu-7"), slice("gpu.nvidia.com"))
		m.claims = nil
		m.looks(10)
		reporttest.Told(t, m.pods)
	})
	t.Run("a device of no node", func(t *testing.T) {
		m := newMachine(t, nil, allocated("fabric", "nic-0"))
		m.claims = nil
		apitest.Answer(m.client, "list", "resourceslices", func(action clienttesting.Action) (bool, runtime.Object, error) {
			list, ok := action.(clienttesting.ListAction)
			out := &resourceapi.ResourceSliceList{}
			if ok && list.GetListRestrictions().Fields.Matches(fields.Set{"spec.nodeName": "", "spec.driver": "fabric"}) {
				out.Items = append(out.Items, *slice("fabric"))
			}
			return true, out, nil
		})
		m.looks(10)
		reporttest.Told(t, m.pods, "GPUUsedWithoutGrant")
	})
	t.Run("the kubelet has told of it", func(t *testing.T) {
		m := newMachine(t, func(o *Options) {
			o.OfDriver = func(pod audit.Pod, gpu string) bool { return pod.UID == "uid-p" && gpu == uuid }
		}, allocated("gpu.nvidia.com", "gpu-0"))
		m.claims = nil
		m.looks(10)
		reporttest.Told(t, m.pods)
		if actions := m.client.Actions(); len(actions) > 0 {
			t.Errorf("the API server was asked: %v", actions)
		}
	})
}

// The kubelet removes the ResourceSlices of a driver that is away, and its pods go on.
func TestPodsOfADriverThatIsAwayStay(t *testing.T) {
	m := newMachine(t, evicts(audit.NoGrant), allocated("gpu.nvidia.com", "gpu-0"), slice("gpu.nvidia.com"))
	asked := m.evictions(func() error { return nil })
	m.claims = nil
	m.looks(5)
	expect.NoError(t, m.client.ResourceV1().ResourceSlices().Delete(t.Context(), "s", metav1.DeleteOptions{}))
	m.clock.Step(knownFor + time.Minute)
	m.looks(60)
	reporttest.Told(t, m.pods)
	expect.Equal(t, 0, len(*asked), "evictions %v", *asked)
}
