// SPDX-License-Identifier: Apache-2.0

package scheduling

import (
	"cmp"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	corev1helpers "k8s.io/component-helpers/scheduling/corev1"
)

// HighestOfUsers is the highest priority that a PriorityClass of users may have: what is above belongs to the system.
const HighestOfUsers = 1_000_000_000

// QueueOrder compares pods as the scheduler's queue does.
func QueueOrder(a, b *corev1.Pod) int {
	return cmp.Or(cmp.Compare(corev1helpers.PodPriority(b), corev1helpers.PodPriority(a)),
		a.CreationTimestamp.Compare(b.CreationTimestamp.Time), cmp.Compare(a.UID, b.UID))
}

// Named returns the object of that name, nil if there is none. The namespace of cluster-wide objects is empty.
func Named[O metav1.Object](among []O, namespace, name string) (found O) {
	for _, o := range among {
		if o.GetNamespace() == namespace && o.GetName() == name {
			return o
		}
	}
	return found
}

// Alone reports whether the default scheduler places a pod, by itself.
func Alone(pod *corev1.Pod) bool {
	return pod.Spec.SchedulingGroup == nil &&
		cmp.Or(pod.Spec.SchedulerName, corev1.DefaultSchedulerName) == corev1.DefaultSchedulerName
}

// AsksForDevices reports whether a pod that requests so much may have devices.
func AsksForDevices(pod *corev1.Pod, requests corev1.ResourceList) bool {
	for name, amount := range requests {
		if Extended(name) && !amount.IsZero() {
			return true
		}
	}
	return len(pod.Spec.ResourceClaims) > 0
}

// HasHostPort reports whether a pod takes ports of its node, of which each is there once.
func HasHostPort(spec *corev1.PodSpec) bool {
	return slices.ContainsFunc(slices.Concat(spec.InitContainers, spec.Containers), func(c corev1.Container) bool {
		return slices.ContainsFunc(c.Ports, func(p corev1.ContainerPort) bool { return p.HostPort != 0 || spec.HostNetwork })
	})
}

// PinnedTo returns an affinity that restricts a pod to one node and keeps all else that a pod with the affinity asks
// for.
func PinnedTo(node string, affinity *corev1.Affinity) *corev1.Affinity {
	only := []corev1.NodeSelectorRequirement{{Key: metav1.ObjectNameField, Operator: corev1.NodeSelectorOpIn,
		Values: []string{node}}}
	out := &corev1.Affinity{}
	if affinity != nil {
		out = affinity.DeepCopy()
	}
	if out.NodeAffinity == nil {
		out.NodeAffinity = &corev1.NodeAffinity{}
	}
	wanted := out.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution
	if wanted == nil {
		out.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution = &corev1.NodeSelector{
			NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchFields: only}}}
		return out
	}
	for i := range wanted.NodeSelectorTerms {
		// A term without requirements selects no node, and would select one with these.
		if term := &wanted.NodeSelectorTerms[i]; len(term.MatchExpressions)+len(term.MatchFields) > 0 {
			term.MatchFields = append(term.MatchFields, only...)
		}
	}
	return out
}

// Unseen reports whether a pod asks for something of a node, or of the pods around it, that is not looked at here, so
// that it might not fit where its resources, its volumes and its devices do.
func Unseen(spec *corev1.PodSpec) bool {
	a := spec.Affinity
	return a != nil && a.PodAffinity != nil && len(a.PodAffinity.RequiredDuringSchedulingIgnoredDuringExecution) > 0 ||
		slices.ContainsFunc(spec.TopologySpreadConstraints, func(c corev1.TopologySpreadConstraint) bool {
			return c.WhenUnsatisfiable == corev1.DoNotSchedule
		}) || HasHostPort(spec)
}
