// SPDX-License-Identifier: Apache-2.0

package claim

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/dynamic-resource-allocation/resourceclaim"
	"k8s.io/utils/ptr"
)

// PodContainer is a container of a pod, of any kind, with what it uses of claims.
type PodContainer struct {
	*corev1.Container
	Uses []Use
	// Ends says that it ends before the pod's other containers start: an init container that
	// is no sidecar.
	Ends bool
}

// Use is a claim that a container uses.
type Use struct {
	// Claim is the name of the ResourceClaim.
	Claim string
	// Request is the claim's request that it uses; all of them if it is empty.
	Request string
}

// Containers are the pod's containers that use claims, init containers first. Claims
// that do not exist yet are left out.
func Containers(pod *corev1.Pod) []PodContainer {
	names := map[string]string{}
	for i := range pod.Spec.ResourceClaims {
		name, _, err := resourceclaim.Name(pod, &pod.Spec.ResourceClaims[i])
		if err == nil && name != nil {
			names[pod.Spec.ResourceClaims[i].Name] = *name
		}
	}
	var out []PodContainer
	for kind, containers := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range containers {
			c := PodContainer{Container: &containers[i], Uses: extendedUses(pod, containers[i].Name),
				Ends: kind == 0 && ptr.Deref(containers[i].RestartPolicy, "") != corev1.ContainerRestartPolicyAlways}
			for _, used := range containers[i].Resources.Claims {
				if name := names[used.Name]; name != "" {
					c.Uses = append(c.Uses, Use{Claim: name, Request: used.Request})
				}
			}
			if len(c.Uses) > 0 {
				out = append(out, c)
			}
		}
	}
	return out
}

// extendedUses is what the container uses of the claim that stands for the pod's
// extended resources, if there is one.
func extendedUses(pod *corev1.Pod, container string) []Use {
	status := pod.Status.ExtendedResourceClaimStatus
	if status == nil {
		return nil
	}
	var out []Use
	for _, m := range status.RequestMappings {
		if m.ContainerName == container {
			out = append(out, Use{Claim: status.ResourceClaimName, Request: m.RequestName})
		}
	}
	return out
}

// UsesRequest reports whether the container uses the request of the claim, which may be
// named as "request/subrequest".
func (c PodContainer) UsesRequest(claimName, request string) bool {
	return slices.ContainsFunc(c.Uses, func(u Use) bool {
		return u.Claim == claimName && (u.Request == "" || u.Request == resourceclaim.BaseRequestRef(request))
	})
}

// OtherClaims are the claims that the container uses beside the one named.
func (c PodContainer) OtherClaims(claimName string) []string {
	var out []string
	for _, u := range c.Uses {
		if u.Claim != claimName && !slices.Contains(out, u.Claim) {
			out = append(out, u.Claim)
		}
	}
	return out
}

// Used are those of the claim's grants that the container uses.
func (c PodContainer) Used(claimName string, grants []Grant) []Grant {
	var out []Grant
	for _, g := range grants {
		if c.UsesRequest(claimName, g.Request) {
			out = append(out, g)
		}
	}
	return out
}

// AtOnce is how many of the pods' containers use some of the claim's grants at the same time.
func AtOnce(claimName string, grants []Grant, pods []*corev1.Pod) int {
	sum := 0
	for _, pod := range pods {
		ending, staying := 0, 0
		for _, c := range Containers(pod) {
			switch {
			case len(c.Used(claimName, grants)) == 0:
			case c.Ends:
				ending = 1
			default:
				staying++
			}
		}
		sum += max(ending, staying)
	}
	return sum
}

// Join has grants of several requests that a container uses together count as one,
// as if the requests' configuration named that container (see SameContainer): a
// container's limits are in its environment, where only one of each can be. What a
// configuration says stays.
func Join(grants []Grant, claimName string, containers []PodContainer) {
	for _, c := range containers {
		used := c.Used(claimName, grants)
		if !slices.ContainsFunc(used, func(g Grant) bool { return g.Request != used[0].Request }) {
			continue
		}
		name := &c.Name
		if i := slices.IndexFunc(used, func(g Grant) bool { return g.Config.Container != nil }); i >= 0 {
			name = used[i].Config.Container
		}
		for i := range grants {
			if grants[i].Config.Container == nil && c.UsesRequest(claimName, grants[i].Request) {
				grants[i].Config.Container = name
			}
		}
	}
}

// cudaDevicesEnv is the variable by which a pod's author chooses among the
// GPUs of a container, and their order.
const cudaDevicesEnv = "CUDA_VISIBLE_DEVICES"

// LeavesOrder reports whether the order in which the pod's containers see their
// GPUs can be set by this claim: none of those that use it sets
// CUDA_VISIBLE_DEVICES itself. others lists the claims that such a container
// uses beside it: if one of them brings GPUs too, an order that names the
// GPUs of one claim would hide those of the other.
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
