// SPDX-License-Identifier: Apache-2.0

package preempt

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/gpushare/dra-driver-gpushare/pkg/scheduling"
)

// domain are the nodes with a label.
type domain struct{ key, value string }

// keptOff are the pods that keep a pod off nodes by their required anti-affinity, or by its own.
type keptOff map[domain][]*corev1.Pod

// keepOff finds the pods that keep another off nodes.
func (s situation) keepOff(pod *corev1.Pod) keptOff {
	kept := keptOff{}
	for _, n := range s.nodes {
		for _, other := range n.pods {
			keeps := func(term corev1.PodAffinityTerm, of, selected *corev1.Pod) {
				value, has := n.Labels[term.TopologyKey]
				if at := (domain{term.TopologyKey, value}); has && s.selectedBy(term, of.Namespace, selected) {
					kept[at] = append(kept[at], other)
				}
			}
			for _, term := range antiAffinityOf(other) {
				keeps(term, other, pod)
			}
			for _, term := range antiAffinityOf(pod) {
				keeps(term, pod, other)
			}
		}
	}
	return kept
}

// from are those that keep the pod off a node.
func (k keptOff) from(n *node) []*corev1.Pod {
	if len(k) == 0 {
		return nil
	}
	var found []*corev1.Pod
	for key, value := range n.Labels {
		found = append(found, k[domain{key, value}]...)
	}
	return found
}

func antiAffinityOf(pod *corev1.Pod) []corev1.PodAffinityTerm {
	if pod.Spec.Affinity == nil || pod.Spec.Affinity.PodAntiAffinity == nil {
		return nil
	}
	return pod.Spec.Affinity.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution
}

// selectedBy reports whether a term of a pod of that namespace selects another pod.
func (s situation) selectedBy(term corev1.PodAffinityTerm, namespace string, pod *corev1.Pod) bool {
	named := term.Namespaces
	if len(named) == 0 && term.NamespaceSelector == nil {
		named = []string{namespace}
	}
	return (slices.Contains(named, pod.Namespace) || s.inNamespaces(term.NamespaceSelector, pod.Namespace)) &&
		scheduling.ReadSelector(term.LabelSelector).Matches(labels.Set(pod.Labels))
}

func (s situation) inNamespaces(selector *metav1.LabelSelector, namespace string) bool {
	return selector != nil && scheduling.ReadSelector(selector).Matches(labels.Set(s.namespaces[namespace]))
}
