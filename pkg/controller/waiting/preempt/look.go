// SPDX-License-Identifier: Apache-2.0

package preempt

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/controller/cache"
	"github.com/gpushare/dra-driver-gpushare/pkg/devices/view"
	"github.com/gpushare/dra-driver-gpushare/pkg/scheduling"
)

// look is what the caches know of the cluster.
func (p *Preemptor) look(ctx context.Context, pods []*corev1.Pod, now time.Time) (*situation, error) {
	rules, _, err := cache.DeviceTaintRules(ctx, p.Rules)
	if err != nil {
		return nil, fmt.Errorf("pods may be evicted in vain without the DeviceTaintRules: %w", err)
	}
	gangs, err := p.listGangs(ctx, pods)
	if err != nil {
		return nil, err
	}
	disruptions := p.budgets.List()
	slices.SortFunc(disruptions, func(a, b *policyv1.PodDisruptionBudget) int {
		return cmp.Compare(cache.Key(a), cache.Key(b))
	})
	s := &situation{
		pods: pods, namespaces: map[string]map[string]string{}, budgets: scheduling.NewBudgets(disruptions),
		gangs: gangs, now: now,
		overdue: overdue(pods, p.endings.For), rules: rules, refused: p.refused, classes: p.caches.Classes.List(),
		engine: p.Engine,
	}
	for _, namespace := range p.namespaces.List() {
		s.namespaces[namespace.Name] = namespace.Labels
	}
	byNode := map[string]*node{}
	for _, n := range p.caches.Nodes.List() {
		found := &node{Node: n.Node(), claims: p.caches.Claims.OnNode(n.Name)}
		if newest, whole := view.Newest(n.Name, p.caches.Slices.OnNode(n.Name)); whole {
			found.pool = newest
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
		slices.SortFunc(n.pods, byKey)
	}
	return s, nil
}

// without takes into account for whom pods are evicted: a round looks at the cluster once, and evicts
// for several.
func (s *situation) without(evictions map[string]*eviction) {
	s.reserved, s.evicted = map[string]bool{}, map[types.UID]bool{}
	for name, e := range evictions {
		s.reserved[name] = true
		for _, uid := range e.victims {
			s.evicted[uid] = true
		}
	}
	for _, g := range s.gangs {
		g.pods = slices.DeleteFunc(g.pods, func(pod *corev1.Pod) bool { return s.evicted[pod.UID] })
	}
}

// byKey is an order of pods: the cache has none.
func byKey(a, b *corev1.Pod) int { return cmp.Compare(cache.Key(a), cache.Key(b)) }

// takesPart reports whether others are evicted for pods of a namespace.
func (p *Preemptor) takesPart(namespace string) bool {
	found, there := p.namespaces.Get(namespace)
	return there && takePart(found.Labels)
}

// takePart reports whether administrators have a namespace with these labels take part: its pods
// preempt others, and are preempted.
func takePart(labels map[string]string) bool { return labels[v1alpha1.LabelPreemption] == "true" }
