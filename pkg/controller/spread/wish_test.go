// SPDX-License-Identifier: Apache-2.0

package spread_test

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/gpushare/dra-driver-gpushare/internal/apitest"
	"github.com/gpushare/dra-driver-gpushare/pkg/placement"
)

// What the devices of other drivers have left, only the scheduler knows.
func TestSharesBesideDevicesOfOthers(t *testing.T) {
	nic := func(name string) resourceapi.DeviceRequest {
		return resourceapi.DeviceRequest{Name: name, Exactly: &resourceapi.ExactDeviceRequest{DeviceClassName: "nic",
			AllocationMode: resourceapi.DeviceAllocationModeExactCount, Count: 1}}
	}
	class := func(s *site) {
		s.Helper()
		c := &resourceapi.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: "nic"}, Spec: resourceapi.DeviceClassSpec{
			Selectors: []resourceapi.DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{
				Expression: `device.driver == "nic.example.com"`}}}}}
		everything := &resourceapi.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: "any"}}
		apitest.Create(s, s.client, c, everything)
	}
	other := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "d", UID: "nics"}}
	other.Spec.Devices.Requests = []resourceapi.DeviceRequest{nic("nic")}
	two := waitingPod(refused)
	two.Spec.ResourceClaims = append([]corev1.PodResourceClaim{{Name: "nic", ResourceClaimName: ptr.To("d")}},
		two.Spec.ResourceClaims...)
	both, root := claim(-1, 2, 1), resourceapi.FullyQualifiedName("resource.kubernetes.io/pcieRoot")
	both.Spec.Devices.Requests = append(both.Spec.Devices.Requests, nic("nic"), nic("second"))
	both.Spec.Devices.Constraints = append(both.Spec.Devices.Constraints,
		resourceapi.DeviceConstraint{MatchAttribute: &root, Requests: []string{"nic", "second"}})
	// A class of everything: the request says whose devices are meant.
	everything := claim(-1, 2, 1)
	for i := range everything.Spec.Devices.Requests {
		r := everything.Spec.Devices.Requests[i].Exactly
		r.DeviceClassName = "any"
		r.Selectors = append(r.Selectors, resourceapi.DeviceSelector{CEL: &resourceapi.CELDeviceSelector{
			Expression: `device.driver == "gpu.aliyun.com"`}})
	}
	for name, test := range map[string]struct {
		claims []*resourceapi.ResourceClaim
		pod    *corev1.Pod
	}{
		"the request's selector": {[]*resourceapi.ResourceClaim{everything}, waitingPod(refused)},
		"two claims":             {[]*resourceapi.ResourceClaim{other, claim(-1, 2, 1)}, two},
		"one claim":              {[]*resourceapi.ResourceClaim{both}, waitingPod(refused)},
	} {
		t.Run(name, func(t *testing.T) {
			run(t, published("1", behind, behind), test.claims, []*corev1.Pod{test.pod},
				func(s *site) { s.told("at once", &placement.Waiting{Claim: "claim", GiB: 3, Shares: 2}) }, class)
		})
	}
}
