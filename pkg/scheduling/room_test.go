// SPDX-License-Identifier: Apache-2.0

package scheduling_test

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/scheduling"
)

// A selector that cannot be evaluated for a device keeps pods from all nodes as soon as that device is free. So others'
// use of devices is not all that is in the way.
func TestInUse(t *testing.T) {
	const class = "whole." + v1alpha1.DriverName
	held := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Name: "held"},
		Status: resourceapi.ResourceClaimStatus{Allocation: &resourceapi.AllocationResult{}}}
	s := scheduling.Snapshot{Claims: []*resourceapi.ResourceClaim{held}, Classes: []*resourceapi.DeviceClass{
		{ObjectMeta: metav1.ObjectMeta{Name: class}}}}
	for _, node := range []string{"n1", "n2"} {
		slice := pool(node)
		if node == "n1" {
			for i := range slice.Spec.Devices {
				slice.Spec.Devices[i].Attributes = map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{
					v1alpha1.AttrMode: {StringValue: ptr.To("exclusive")}}
			}
		}
		s.Nodes = append(s.Nodes, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node}})
		s.Slices = append(s.Slices, slice)
		for _, device := range []string{"gpu-0", "gpu-1"} {
			held.Status.Allocation.Devices.Results = append(held.Status.Allocation.Devices.Results,
				resourceapi.DeviceRequestAllocationResult{Request: "gpu", Driver: v1alpha1.DriverName,
					Pool: v1alpha1.PoolName(node), Device: device})
		}
	}
	for name, test := range map[string]struct {
		selector, class string
		claims          int
		want            bool
	}{
		"all are held":     {"", class, 1, true},
		"two claims":       {"", class, 2, false},
		"no such class":    {"", "absent." + v1alpha1.DriverName, 1, false},
		"none matches":     {`device.driver == "other"`, class, 1, false},
		"fails for some":   {`device.attributes["gpu.aliyun.com"].mode == "exclusive"`, class, 1, false},
		"matches some":     {`"mode" in device.attributes["gpu.aliyun.com"]`, class, 1, true},
		"does not compile": {"nothing", class, 1, false},
		"matches all":      {`device.driver == "gpu.aliyun.com"`, class, 1, true},
	} {
		t.Run(name, func(t *testing.T) {
			wanted := &resourceapi.ExactDeviceRequest{DeviceClassName: test.class,
				AllocationMode: resourceapi.DeviceAllocationModeExactCount, Count: 1}
			if test.selector != "" {
				wanted.Selectors = []resourceapi.DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{Expression: test.selector}}}
			}
			var claims []*resourceapi.ResourceClaim
			for range test.claims {
				claims = append(claims, &resourceapi.ResourceClaim{Spec: resourceapi.ResourceClaimSpec{
					Devices: resourceapi.DeviceClaim{Requests: []resourceapi.DeviceRequest{{Name: "gpu", Exactly: wanted}}}}})
			}
			room, err := scheduling.NewEngine(9).FindRoom(t.Context(), s, &corev1.Pod{}, claims)
			if err != nil || room.Fits() {
				t.Fatalf("%+v, %v", room, err)
			}
			expect.Equal(t, test.want, room.InUse(claims), "in use of %+v", room)
		})
	}
}
