// SPDX-License-Identifier: Apache-2.0

package scheduling

import (
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// ClaimForExtended is the claim that the scheduler makes for the extended resources of a pod
// which a DeviceClass hands out, such as nvidia.com/gpu; nil if it asks for none. classOf is the
// class that does, nil for none.
func ClaimForExtended(
	pod *corev1.Pod, classOf func(corev1.ResourceName) *resourceapi.DeviceClass,
) *resourceapi.ResourceClaim {
	var requests []resourceapi.DeviceRequest
	for _, name := range ExtendedOf(pod, classOf) {
		for _, a := range amountsOf(pod, name) {
			requests = append(requests, resourceapi.DeviceRequest{Name: string(name) + " of container " + a.container,
				Exactly: &resourceapi.ExactDeviceRequest{
					DeviceClassName: classOf(name).Name, AllocationMode: resourceapi.DeviceAllocationModeExactCount, Count: a.count,
				}})
		}
	}
	if len(requests) == 0 {
		return nil
	}
	return &resourceapi.ResourceClaim{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: pod.Namespace, Name: nameOfScheduler,
			Annotations: map[string]string{resourceapi.ExtendedResourceClaimAnnotation: "true"},
		},
		Spec: resourceapi.ResourceClaimSpec{Devices: resourceapi.DeviceClaim{Requests: requests}},
	}
}

// nameOfScheduler is no name that the API server takes: by their annotation everybody's claims
// could pass for that of the scheduler.
const nameOfScheduler = "of the scheduler's own"

// OfScheduler says whether a claim is that of ClaimForExtended.
func OfScheduler(claim *resourceapi.ResourceClaim) bool { return claim.Name == nameOfScheduler }

// ExtendedOf are the extended resources that a pod requests and a DeviceClass hands out, by name.
func ExtendedOf(
	pod *corev1.Pod, classOf func(corev1.ResourceName) *resourceapi.DeviceClass,
) []corev1.ResourceName {
	names := map[corev1.ResourceName]bool{}
	for _, c := range slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers) {
		for name := range c.Resources.Requests {
			if Extended(name) && classOf(name) != nil {
				names[name] = true
			}
		}
	}
	return slices.Sorted(maps.Keys(names))
}

// amountOfOne is what one container asks for.
type amountOfOne struct {
	container string
	count     int64
}

// amountsOf are the requests that the scheduler makes of a resource: one for each
// container that runs as long as the pod, and one for what an init container needs
// beyond what those after it are given.
func amountsOf(pod *corev1.Pod, name corev1.ResourceName) []amountOfOne {
	of := func(c *corev1.Container) int64 {
		amount := c.Resources.Requests[name]
		return amount.Value()
	}
	var out []amountOfOne
	var sum int64
	for i := range pod.Spec.Containers {
		if n := of(&pod.Spec.Containers[i]); n > 0 {
			out, sum = append(out, amountOfOne{pod.Spec.Containers[i].Name, n}), sum+n
		}
	}
	var most amountOfOne
	for i := len(pod.Spec.InitContainers) - 1; i >= 0; i-- {
		c := &pod.Spec.InitContainers[i]
		n := of(c)
		switch {
		case n == 0:
		case c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways:
			out, sum = append(out, amountOfOne{c.Name, n}), sum+n
		case n-sum > most.count:
			most = amountOfOne{c.Name, n - sum}
		}
	}
	if most.count > 0 {
		out = append(out, most)
	}
	return out
}

// Extended says whether a resource is one that Kubernetes does not know itself, so that
// a device plugin or a DeviceClass has to hand it out.
func Extended(name corev1.ResourceName) bool {
	domain, _, is := strings.Cut(string(name), "/")
	return is && (!strings.HasSuffix(domain, "kubernetes.io") ||
		strings.HasPrefix(string(name), resourceapi.ResourceDeviceClassPrefix) ||
		name == "alpha.kubernetes.io/nvidia-gpu")
}
