// SPDX-License-Identifier: Apache-2.0

package preempt

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/devices/view"
	"github.com/gpushare/dra-driver-gpushare/pkg/informer"
)

// look is what the caches know of the cluster.
func (p *preemptor) look(ctx context.Context, pods []*corev1.Pod, now time.Time) (*situation, error) {
	rules, err := p.listRules(ctx)
	if err != nil {
		return nil, err
	}
	gangs, err := p.listGangs(ctx, pods)
	if err != nil {
		return nil, err
	}
	disruptions := informer.List[*policyv1.PodDisruptionBudget](p.Budgets)
	slices.SortFunc(disruptions, func(a, b *policyv1.PodDisruptionBudget) int {
		return cmp.Compare(cache.MetaObjectToName(a).String(), cache.MetaObjectToName(b).String())
	})
	s := &situation{
		pods: pods, namespaces: map[string]map[string]string{}, budgets: newBudgets(disruptions), gangs: gangs, now: now,
		rules: rules, refused: p.refused,
	}
	for _, namespace := range informer.List[*metav1.PartialObjectMetadata](p.Namespaces) {
		s.namespaces[namespace.Name] = namespace.Labels
	}
	byNode := map[string]*node{}
	for _, n := range informer.List[*corev1.Node](p.Nodes) {
		published, err := informer.SlicesOf(p.Slices, n.Name)
		if err != nil {
			return nil, err
		}
		found := &node{Node: n}
		if newest, whole := view.Newest(n.Name, published); whole {
			found.pool = newest
		}
		if found.claims, err = informer.ClaimsOf(p.Claims, n.Name); err != nil {
			return nil, err
		}
		byNode[n.Name] = found
	}
	for _, name := range slices.Sorted(maps.Keys(byNode)) {
		s.nodes = append(s.nodes, byNode[name])
	}
	for _, pod := range pods {
		if n := byNode[pod.Spec.NodeName]; n != nil {
			n.pods = append(n.pods, pod)
		}
	}
	for _, n := range s.nodes {
		slices.SortFunc(n.pods, func(a, b *corev1.Pod) int {
			return cmp.Compare(cache.MetaObjectToName(a).String(), cache.MetaObjectToName(b).String())
		})
	}
	return s, nil
}

// takesPart says whether others are evicted for pods of a namespace.
func (p *preemptor) takesPart(namespace string) bool {
	found, there, err := informer.Get[*metav1.PartialObjectMetadata](p.Namespaces, namespace)
	return err == nil && there && takePart(found.Labels)
}

// takePart says whether administrators have a namespace with these labels take part: its pods
// preempt others, and are preempted.
func takePart(labels map[string]string) bool { return labels[v1alpha1.LabelPreemption] == "true" }
