// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	componentresource "k8s.io/component-helpers/resource"

	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/legacy"
	"github.com/gpushare/dra-driver-gpushare/pkg/scheduling"
)

// capacity is what a node has of CPU, memory and the like, and what pods request of it.
type capacity struct {
	allocatable, requested corev1.ResourceList
	// pods is how many of them are planned there.
	pods int
	// packing and spreading is how many pods there say so of the nodes of shares.
	packing, spreading int
}

// with is the capacity with one more pod.
func (c capacity) with(pod *corev1.Pod) capacity {
	c.requested = sum(c.requested, requestsOf(pod))
	switch pod.Labels[v1alpha1.LabelNodePlacement] {
	case packs:
		c.packing++
	case spreads:
		c.spreading++
	}
	return c
}

// capacities are those of the nodes that say what they have. Nothing is known of others.
func capacities(in *Input) map[string]capacity {
	out := map[string]capacity{}
	if in.PodsUnknown {
		return out
	}
	for _, node := range in.Nodes {
		if len(node.Status.Allocatable) > 0 {
			out[node.Name] = capacity{allocatable: node.Status.Allocatable, requested: corev1.ResourceList{}}
		}
	}
	for _, pod := range in.Bound {
		if c, ok := out[pod.Spec.NodeName]; ok {
			out[pod.Spec.NodeName] = c.with(pod)
		}
	}
	return out
}

// requestsOf is what the scheduler counts of a pod.
func requestsOf(pod *corev1.Pod) corev1.ResourceList {
	requests := componentresource.PodRequests(pod, componentresource.PodResourcesOptions{UseStatusResources: true})
	requests[corev1.ResourcePods] = *resource.NewQuantity(1, resource.DecimalSI)
	return requests
}

func sum(a, b corev1.ResourceList) corev1.ResourceList {
	out := maps.Clone(a)
	for name, amount := range b {
		total := out[name].DeepCopy()
		total.Add(amount)
		out[name] = total
	}
	return out
}

// occupy counts a pod on a node.
func (s *state) occupy(node string, pod *corev1.Pod) {
	c := s.nodes[node]
	if c.requested == nil {
		c.requested = corev1.ResourceList{}
	}
	c = c.with(pod)
	c.pods++
	s.nodes[node] = c
}

// closed says which nodes have too little of what a pod requests beside devices.
func (s *simulation) closed(pod *corev1.Pod,
	classOf func(corev1.ResourceName) *resourceapi.DeviceClass) map[string]scheduling.Closed {
	out := map[string]scheduling.Closed{}
	requests := requestsOf(pod)
	if slices.ContainsFunc(legacy.Names(), func(name corev1.ResourceName) bool {
		_, is := requests[name]
		return is
	}) {
		// Only a device plugin could serve it: a node has what it says.
		for _, node := range s.in.Nodes {
			if s.nodes[node.Name].allocatable == nil {
				out[node.Name] = scheduling.Closed{By: scheduling.PluginsUnknown}
			}
		}
	}
	for node, c := range s.nodes {
		if c.allocatable == nil {
			continue
		}
		short := scheduling.Short(requests, c.free, func(name corev1.ResourceName) bool { return classOf(name) != nil })
		if len(short) > 0 {
			out[node] = scheduling.Closed{By: scheduling.ByResources, Short: short}
		}
	}
	return out
}

// free is how much of a resource is not requested.
func (c capacity) free(name corev1.ResourceName) resource.Quantity {
	free := c.allocatable[name].DeepCopy()
	free.Sub(c.requested[name])
	return free
}
