package claim

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/dynamic-resource-allocation/resourceclaim"
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
	names := map[string]string{}
	for i := range pod.Spec.ResourceClaims {
		name, _, err := resourceclaim.Name(pod, &pod.Spec.ResourceClaims[i])
		if err == nil && name != nil {
			names[pod.Spec.ResourceClaims[i].Name] = *name
		}
	}
	for _, c := range slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers) {
		used := extendedClaims(pod, c.Name)
		for _, u := range c.Resources.Claims {
			used = append(used, names[u.Name])
		}
		if !slices.Contains(used, claimName) {
			continue
		}
		if slices.ContainsFunc(c.Env, func(e corev1.EnvVar) bool { return e.Name == cudaDevicesEnv }) {
			return false, nil
		}
		for _, name := range used {
			if name != claimName && name != "" && !slices.Contains(others, name) {
				others = append(others, name)
			}
		}
	}
	return true, others
}

// extendedClaims is the claim that stands for the container's extended
// resources, if there is one.
func extendedClaims(pod *corev1.Pod, container string) []string {
	status := pod.Status.ExtendedResourceClaimStatus
	if status == nil || !slices.ContainsFunc(status.RequestMappings, func(m corev1.ContainerExtendedResourceRequest) bool { return m.ContainerName == container }) {
		return nil
	}
	return []string{status.ResourceClaimName}
}
