// SPDX-License-Identifier: Apache-2.0

package preempt

import (
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
)

// selects says whether a selector selects a pod; one that cannot be read may.
func selects(selector *metav1.LabelSelector, pod *corev1.Pod) bool {
	s, err := metav1.LabelSelectorAsSelector(selector)
	return err != nil || s.Matches(labels.Set(pod.Labels))
}

// letGo is how many pods a PodDisruptionBudget lets go now. One that its controller has not
// looked at since it changed lets none go, as for the API server.
func letGo(b *policyv1.PodDisruptionBudget) int {
	if b.Status.ObservedGeneration < b.Generation {
		return 0
	}
	return int(b.Status.DisruptionsAllowed)
}

// budgetsOf are the budgets that count a pod, as indices. Where there are several the API
// server evicts the pod never.
func budgetsOf(pod *corev1.Pod, budgets []*policyv1.PodDisruptionBudget) []int {
	var of []int
	for i, b := range budgets {
		if b.Namespace == pod.Namespace && b.Spec.Selector != nil && selects(b.Spec.Selector, pod) {
			of = append(of, i)
		}
	}
	return of
}
