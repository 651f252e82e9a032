// SPDX-License-Identifier: Apache-2.0

package claim

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/utils/ptr"

	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
)

// Held are the devices of the driver's pool that a claim holds. An administrator's access holds nothing.
func Held(c *resourceapi.ResourceClaim, pool string) []resourceapi.DeviceRequestAllocationResult {
	if c.Status.Allocation == nil {
		return nil
	}
	var held []resourceapi.DeviceRequestAllocationResult
	for _, r := range c.Status.Allocation.Devices.Results {
		if r.Pool == pool && r.Driver == v1alpha1.DriverName && !ptr.Deref(r.AdminAccess, false) {
			held = append(held, r)
		}
	}
	return held
}

// Pods are the pods that a claim is reserved for, in the order in which the claim names them.
// others says that it is for somebody else, too.
func Pods(c *resourceapi.ResourceClaim) (pods []resourceapi.ResourceClaimConsumerReference, others bool) {
	for _, user := range c.Status.ReservedFor {
		if user.APIGroup == "" && user.Resource == "pods" {
			pods = append(pods, user)
		}
	}
	return pods, len(pods) < len(c.Status.ReservedFor)
}

// Others are those that a claim is reserved for and that are no pods, such as PodGroups, whose pods can come later.
func Others(c *resourceapi.ResourceClaim) (others []resourceapi.ResourceClaimConsumerReference) {
	pods, _ := Pods(c)
	for _, user := range c.Status.ReservedFor {
		if !slices.Contains(pods, user) {
			others = append(others, user)
		}
	}
	return others
}

// Ended reports whether all containers of the pod have ended for good.
func Ended(pod *corev1.Pod) bool {
	return pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
}
