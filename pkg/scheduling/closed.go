// SPDX-License-Identifier: Apache-2.0

package scheduling

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	corev1helpers "k8s.io/component-helpers/scheduling/corev1"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
	"k8s.io/klog/v2"
)

// What can keep a pod from a node.
const (
	// Open: nothing does.
	Open ClosedBy = iota
	// ByPod: the pod's nodeSelector, its affinity or its other claims exclude it.
	ByPod
	// Unschedulable: the node takes no new pods.
	Unschedulable
	// ByTaint: the pod does not tolerate a taint of the node.
	ByTaint
	// ByResources: the node has too little free of what the pod requests beside devices.
	ByResources
	// PluginsUnknown: the pod needs a device plugin, and what the node has for those is not
	// known. ResourcesUnknown: nothing of what it has is.
	PluginsUnknown
	ResourcesUnknown
)

// Closed is what keeps a pod from a node.
type Closed struct {
	By ClosedBy
	// Taint is that of ByTaint, Short those of ByResources.
	Taint corev1.Taint
	Short []Shortage
}

// Where reports whether a pod can be on a node as far as the pod itself and its claims say.
type Where func(node *corev1.Node) bool

// Wanted is where a pod wants to be.
func Wanted(pod *corev1.Pod) Where {
	wanted := nodeaffinity.GetRequiredNodeAffinity(pod)
	return func(node *corev1.Node) bool {
		ok, err := wanted.Match(node)
		return ok && err == nil
	}
}

// Possible is where a pod can be: where it wants to, and where its claims have devices already.
// An error is one of a claim.
func Possible(pod *corev1.Pod, claims []*resourceapi.ResourceClaim) (Where, error) {
	wanted := Wanted(pod)
	var allocated []*nodeaffinity.NodeSelector
	for _, claim := range claims {
		if claim.Status.Allocation == nil || claim.Status.Allocation.NodeSelector == nil {
			continue
		}
		selector, err := nodeaffinity.NewNodeSelector(claim.Status.Allocation.NodeSelector)
		if err != nil {
			return nil, fmt.Errorf("read where claim %s/%s is allocated: %w", claim.Namespace, claim.Name, err)
		}
		allocated = append(allocated, selector)
	}
	return func(node *corev1.Node) bool {
		return wanted(node) && !slices.ContainsFunc(allocated,
			func(selector *nodeaffinity.NodeSelector) bool { return !selector.Match(node) })
	}, nil
}

// ClosedTo is what keeps a pod from a node, as far as the pod and the node say.
func ClosedTo(ctx context.Context, node *corev1.Node, pod *corev1.Pod, may Where) Closed {
	if !may(node) {
		return Closed{By: ByPod}
	}
	tolerated := func(taint corev1.Taint) bool {
		return corev1helpers.TolerationsTolerateTaint(klog.FromContext(ctx), pod.Spec.Tolerations, &taint, false)
	}
	if node.Spec.Unschedulable &&
		!tolerated(corev1.Taint{Key: corev1.TaintNodeUnschedulable, Effect: corev1.TaintEffectNoSchedule}) {
		return Closed{By: Unschedulable}
	}
	for _, taint := range node.Spec.Taints {
		if taint.Effect != corev1.TaintEffectPreferNoSchedule && !tolerated(taint) {
			return Closed{By: ByTaint, Taint: taint}
		}
	}
	return Closed{}
}
