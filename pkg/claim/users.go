// SPDX-License-Identifier: Apache-2.0

package claim

import (
	resourceapi "k8s.io/api/resource/v1"
)

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
