// SPDX-License-Identifier: Apache-2.0

package explain

import (
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"

	"github.com/gpushare/dra-driver-gpushare/pkg/explain/advice"
	"github.com/gpushare/dra-driver-gpushare/pkg/scheduling"
)

// Instead says what to write instead of what a waiting pod says in the manner of
// others; nothing where it says nothing of the kind. offered says whether a device
// plugin of some node serves a resource.
func (c *Cluster) Advice(pod *corev1.Pod, offered func(corev1.ResourceName) bool) string {
	return advice.Of(pod, advice.Cluster{
		Served:     func(name corev1.ResourceName) bool { return c.ClassOf(name) != nil || offered(name) },
		OnSomeNode: func(key string) bool { return c.Labels[key] },
	})
}

// ClaimOfScheduler is scheduling.ClaimForExtended with the classes of the cluster.
// The API server has no such claim before it is allocated. Its requests are named by
// what they are of, for Explain. Nodes that a device plugin serves are not known; so
// it is never said of such a claim that it can never be served.
func (c *Cluster) ClaimOfScheduler(pod *corev1.Pod) *resourceapi.ResourceClaim {
	return scheduling.ClaimForExtended(pod, c.ClassOf)
}

// ExtendedOf are the extended resources of a pod that DeviceClasses hand out.
func (c *Cluster) ExtendedOf(pod *corev1.Pod) []corev1.ResourceName {
	return scheduling.ExtendedOf(pod, c.ClassOf)
}
