// SPDX-License-Identifier: Apache-2.0

package scheduling

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
)

// ReadSelector reads a selector; one that cannot be read may select everything.
func ReadSelector(selector *metav1.LabelSelector) labels.Selector {
	s, err := metav1.LabelSelectorAsSelector(selector)
	if err != nil {
		return labels.Everything()
	}
	return s
}

// letGo is how many pods a PodDisruptionBudget lets go now. One that its controller has not
// looked at since it changed lets none go, as for the API server.
func letGo(b *policyv1.PodDisruptionBudget) int {
	if b.Status.ObservedGeneration < b.Generation {
		return 0
	}
	return int(b.Status.DisruptionsAllowed)
}

// Budgets are the PodDisruptionBudgets at a moment, ready to be asked of many pods.
type Budgets struct {
	// Allowed is how many pods each lets go.
	Allowed []int
	in      map[string][]budget
	known   map[types.UID][]int
}

type budget struct {
	index    int
	selector labels.Selector
}

// NewBudgets reads PodDisruptionBudgets.
func NewBudgets(of []*policyv1.PodDisruptionBudget) *Budgets {
	b := &Budgets{in: map[string][]budget{}, known: map[types.UID][]int{}}
	for i, pdb := range of {
		b.Allowed = append(b.Allowed, letGo(pdb))
		b.in[pdb.Namespace] = append(b.in[pdb.Namespace], budget{i, ReadSelector(pdb.Spec.Selector)})
	}
	return b
}

// Of are the budgets that count a pod, as indices. Where there are several the API server
// evicts the pod never.
func (b *Budgets) Of(pod *corev1.Pod) []int {
	if found, known := b.known[pod.UID]; known {
		return found
	}
	var found []int
	for _, of := range b.in[pod.Namespace] {
		if of.selector.Matches(labels.Set(pod.Labels)) {
			found = append(found, of.index)
		}
	}
	b.known[pod.UID] = found
	return found
}

// LetGo reports whether all budgets that count a pod let one more go.
func (b *Budgets) LetGo(pod *corev1.Pod) bool {
	return !slices.ContainsFunc(b.Of(pod), func(i int) bool { return b.Allowed[i] <= 0 })
}
