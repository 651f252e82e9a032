// SPDX-License-Identifier: Apache-2.0

package cpusets

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/gpushare/dra-driver-gpushare/pkg/apis/ack"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/legacy"
)

// unclaimed is said of a pod to which the policies would have given a claim, had the
// DeviceClass been there.
const unclaimed = "unclaimed"

// missing is why none of a pod's containers has a claim for CPUs; empty where one has, or the
// policy that would give it has not looked at the pod.
func missing(pod *corev1.Pod) string {
	if _, asks := pod.Annotations[v1alpha1.AnnotationCPUSet]; !asks {
		return ""
	}
	could := false
	for _, c := range pod.Spec.Containers {
		if slices.ContainsFunc(c.Resources.Claims, legacy.IsForCPUs) {
			return ""
		}
		could = could || wholeCPUs(c.Resources)
	}
	switch burst := pod.Annotations[ack.AnnotationBurst]; {
	case burst == "eci" || burst == "eci_only":
		return fmt.Sprintf("by its annotation %s: %s it may run on a virtual node, which prepares no ResourceClaims",
			ack.AnnotationBurst, burst)
	case !could:
		return fmt.Sprintf("no container has a CPU limit that is a whole number from 1 to %d and the same as its request",
			legacy.MostCPUs)
	default:
		return unclaimed
	}
}

// wholeCPUs reports whether a container could have CPUs of its own.
func wholeCPUs(r corev1.ResourceRequirements) bool {
	limit, limited := r.Limits[corev1.ResourceCPU]
	request, requested := r.Requests[corev1.ResourceCPU]
	n := limit.Value()
	return limited && requested && limit.Cmp(request) == 0 && limit.CmpInt64(n) == 0 && n >= 1 && n <= legacy.MostCPUs
}

func sayUnclaimed(classExists bool) string {
	if classExists {
		// The class may have been there: the policy uses the marker that the controller makes.
		return fmt.Sprintf("%s had not yet seen DeviceClass %s when it was created, and it cannot be given a claim "+
			"afterwards: create it again", v1alpha1.ControllerName, legacy.ClassCPUs)
	}
	return fmt.Sprintf("the cluster has no DeviceClass %s. Its administrator installs dra-driver-cpu of kubernetes-sigs, "+
		"which pins containers to CPUs", legacy.ClassCPUs)
}
