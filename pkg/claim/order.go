package claim

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
)

// cudaDevicesEnv is the variable by which a pod's author chooses among the
// cards of a container, and their order.
const cudaDevicesEnv = "CUDA_VISIBLE_DEVICES"

// LeavesOrder says whether the order in which the pod's containers see their
// cards can be set by this claim: none of those that use it sets
// CUDA_VISIBLE_DEVICES itself. others lists the claims that such a container
// uses beside it: if one of them brings cards too, an order that names the
// cards of one claim would hide those of the other.
func LeavesOrder(pod *corev1.Pod, claimName string) (leaves bool, others []string) {
	for _, c := range Containers(pod) {
		if !slices.ContainsFunc(c.Uses, func(u Use) bool { return u.Claim == claimName }) {
			continue
		}
		if slices.ContainsFunc(c.Env, func(e corev1.EnvVar) bool { return e.Name == cudaDevicesEnv }) {
			return false, nil
		}
		for _, name := range c.OtherClaims(claimName) {
			if !slices.Contains(others, name) {
				others = append(others, name)
			}
		}
	}
	return true, others
}
