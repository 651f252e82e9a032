// SPDX-License-Identifier: Apache-2.0

// Package rightsize tells for workloads how much GPU memory their peaks need, and how to write that. It is pure.
package rightsize

import (
	"cmp"
	"slices"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/dynamic-resource-allocation/resourceclaim"
	"k8s.io/utils/ptr"

	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/claim"
	"github.com/gpushare/dra-driver-gpushare/pkg/devices"
	"github.com/gpushare/dra-driver-gpushare/pkg/inspect/consumption"
	"github.com/gpushare/dra-driver-gpushare/pkg/legacy"
)

// Where an amount of memory is written.
const (
	inLimits   = "limits"
	inTemplate = "resourceclaimtemplate"
	inClaim    = "resourceclaim"
)

// Setting is an amount of GPU memory that somebody has written.
type Setting struct {
	key
	// workloads are whose it is: those of a template or a claim may be several.
	workloads []consumption.Workload
	sidecar   bool
	// gib is how much of each GPU, gpus of how many.
	gib, gpus int64
	pods      int
	// skip is why it is not sized.
	skip string
}

// key tells settings apart, whatever their amounts: while a workload is rolled out its pods have two.
type key struct {
	namespace string
	// in is one of the above, object the template's or claim's name there, request the request's.
	in, object, request string
	// container is whose limits they are, of this workload.
	container string
	workload  consumption.Workload
}

// Settings are those that living pods were made with, by the claims that they have; of several of one kind the
// youngest pod's. They are in order.
func Settings(pods []*corev1.Pod, claims []*resourceapi.ResourceClaim) []Setting {
	pods = slices.Clone(pods)
	slices.SortStableFunc(pods, func(a, b *corev1.Pod) int {
		return a.CreationTimestamp.Compare(b.CreationTimestamp.Time)
	})
	type name struct{ namespace, name string }
	known := map[name]*resourceapi.ResourceClaim{}
	for _, c := range claims {
		known[name{c.Namespace, c.Name}] = c
	}
	found := map[key]*Setting{}
	for _, pod := range pods {
		var all []Setting
		for i := range pod.Spec.ResourceClaims {
			ref := &pod.Spec.ResourceClaims[i]
			called, _, err := resourceclaim.Name(pod, ref)
			if err != nil || called == nil {
				continue
			}
			if c := known[name{pod.Namespace, *called}]; c != nil {
				all = append(all, settingsOf(pod, ref, c)...)
			}
		}
		if status := pod.Status.ExtendedResourceClaimStatus; status != nil {
			if c := known[name{pod.Namespace, status.ResourceClaimName}]; c != nil && len(held(c)) > 0 {
				all = append(all, Setting{key: key{in: inLimits}, skip: "it has GPUs by an extended resource"})
			}
		}
		for _, s := range all {
			workload := consumption.Of(pod)
			s.namespace = pod.Namespace
			if s.in == inLimits {
				s.workload = workload
			}
			if len(all) > 1 && s.in != inLimits {
				s.skip = cmp.Or(s.skip, "its pods have several claims, and which of them memory is used by is not known")
			}
			if before := found[s.key]; before != nil {
				s.pods, s.workloads = before.pods, before.workloads
			}
			if s.pods++; !slices.Contains(s.workloads, workload) {
				s.workloads = append(s.workloads, workload)
			}
			found[s.key] = &s
		}
	}
	var out []Setting
	for _, s := range found {
		out = append(out, *s)
	}
	slices.SortFunc(out, func(a, b Setting) int {
		return cmp.Or(cmp.Compare(a.namespace, b.namespace), slices.Compare(a.users(), b.users()),
			cmp.Compare(a.container, b.container), cmp.Compare(a.object, b.object), cmp.Compare(a.request, b.request))
	})
	return out
}

// Namespace is that of its workloads.
func (s Setting) Namespace() string { return s.namespace }

// users are the names of its workloads.
func (s Setting) users() []string {
	var names []string
	for _, w := range s.workloads {
		names = append(names, w.String())
	}
	slices.Sort(names)
	return names
}

// held are the devices of this driver that a claim has.
func held(c *resourceapi.ResourceClaim) []resourceapi.DeviceRequestAllocationResult {
	return claim.Held(c, v1alpha1.PoolName(claim.AllocatedFrom(c)))
}

// settingsOf are those by which a pod has a claim.
func settingsOf(pod *corev1.Pod, ref *corev1.PodResourceClaim, c *resourceapi.ResourceClaim) []Setting {
	results := held(c)
	if len(results) == 0 {
		return nil
	}
	s := Setting{key: key{in: inTemplate, object: ptr.Deref(ref.ResourceClaimTemplateName, "")}}
	if s.object == "" {
		s.in, s.object = inClaim, c.Name
	}
	for _, r := range results {
		if _, m, err := devices.ParseDeviceName(r.Device); err != nil || !m.Shared() {
			s.skip = "it has GPUs in mode " + string(m) + ", which are not sized by GiB"
			return []Setting{s}
		}
	}
	if legacy.IsName(s.object) && c.Labels[v1alpha1.LabelLegacy] == "true" {
		return limitsOf(pod, s.object)
	}
	s.request = resourceclaim.BaseRequestRef(results[0].Request)
	s.gpus = int64(len(results))
	for _, r := range results {
		memory := r.ConsumedCapacity[v1alpha1.CapMemory]
		s.gib = max(s.gib, memory.Value()/devices.GiB)
		switch {
		case resourceclaim.BaseRequestRef(r.Request) != s.request:
			s.skip = "its claim has several requests, and which of them memory is used by is not known"
		case resourceclaim.BaseRequestRef(r.Request) != r.Request:
			s.skip = "its claim's request has alternatives"
		}
	}
	return []Setting{s}
}

// limitsOf are the limits that a legacy pod was written with, which its template is named after.
func limitsOf(pod *corev1.Pod, template string) []Setting {
	request, err := legacy.ParseName(template)
	if err != nil || request.Whole {
		return []Setting{{key: key{in: inLimits}, skip: "its pods ask for all of a GPU's memory"}}
	}
	var out []Setting
	for _, c := range request.Containers {
		s := Setting{key: key{in: inLimits, container: c.Name}, gib: c.MemoryGiB / request.Count, gpus: request.Count}
		called := func(o corev1.Container) bool { return o.Name == c.Name }
		if s.sidecar = slices.ContainsFunc(pod.Spec.InitContainers, called); !s.sidecar &&
			!slices.ContainsFunc(pod.Spec.Containers, called) {
			s.skip = "the names of its containers are too long to tell them apart"
		}
		out = append(out, s)
	}
	return out
}
