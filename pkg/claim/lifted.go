package claim

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/dynamic-resource-allocation/resourceclaim"
)

// disableEnv is the variable by which a pod's author lifts the limits of a
// container, as on ACK.
const disableEnv = "CGPU_DISABLE"

// LiftedByPod says for which requests of the claim a container of the pod
// lifts its limits, by setting CGPU_DISABLE to "true" or "1". Containers that
// use one request share one grant; so one of them lifts it for all. A container
// that uses the whole claim lifts all requests: all is true.
func LiftedByPod(pod *corev1.Pod, claimName string) (requests map[string]bool, all bool) {
	requests = map[string]bool{}
	for i := range pod.Spec.ResourceClaims {
		podClaim := &pod.Spec.ResourceClaims[i]
		name, _, err := resourceclaim.Name(pod, podClaim)
		if err != nil || name == nil || *name != claimName {
			continue
		}
		for _, c := range append(append([]corev1.Container{}, pod.Spec.InitContainers...), pod.Spec.Containers...) {
			if !disables(c.Env) {
				continue
			}
			for _, used := range c.Resources.Claims {
				if used.Name == podClaim.Name && used.Request == "" {
					all = true
				} else if used.Name == podClaim.Name {
					requests[used.Request] = true
				}
			}
		}
	}
	return requests, all
}

func disables(env []corev1.EnvVar) bool {
	for _, e := range env {
		if e.Name == disableEnv && (e.Value == "true" || e.Value == "1") {
			return true
		}
	}
	return false
}
