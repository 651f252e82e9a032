// SPDX-License-Identifier: Apache-2.0

package preempt

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	toolscache "k8s.io/client-go/tools/cache"
	corev1helpers "k8s.io/component-helpers/scheduling/corev1"

	"github.com/gpushare/dra-driver-gpushare/pkg/controller/podstate"
)

// podsMost is how many pods are evicted for one, those of gangs included.
const podsMost = 64

// roster is who may be evicted to make room on a node: pods that hold devices of it, and gangs
// of such pods as a whole.
type roster struct {
	candidates []candidate
	// allowed is how many pods each budget lets go, and then each gang without which it lacks none.
	allowed []int
}

// rosterOf finds them for a pod of that priority. holders are the pods that hold devices, each
// with its kind.
func (s situation) rosterOf(n *node, holders map[types.UID]string, than int32) roster {
	r := roster{allowed: s.budgets.Allowed}
	spare := map[toolscache.ObjectName]int{}
	for _, pod := range n.pods {
		kind, holds := holders[pod.UID]
		if !holds || s.evicted[pod.UID] {
			continue
		}
		c, expendable := s.candidate(than, pod)
		name, _ := podstate.Gang(pod)
		g := s.gangs[name]
		if g == nil || g.least <= 1 || pod.DeletionTimestamp != nil {
			c.kind = kind
			r.add(expendable, c)
			continue
		}
		budget, known := spare[name]
		if !known {
			budget = len(r.allowed)
			spare[name] = budget
			r.allowed = append(slices.Clip(r.allowed), len(g.pods)-g.least)
			if all, may := s.candidate(than, g.pods...); len(g.pods) <= podsMost {
				r.add(may, all)
			}
		}
		if len(g.pods) > g.least {
			c.kind, c.budgets = kind, append(slices.Clip(c.budgets), budget)
			r.add(expendable, c)
		}
	}
	return r
}

func (r *roster) add(may bool, c candidate) {
	if may {
		r.candidates = append(r.candidates, c)
	}
}

// candidate is what it costs to evict pods together; false where one of them may not be.
func (s situation) candidate(than int32, pods ...*corev1.Pod) (candidate, bool) {
	var each []candidate
	var all []int
	var budgets []int
	for i, pod := range pods {
		var of []int
		if pod.DeletionTimestamp == nil {
			// The API server lets none keep a pod that terminates.
			of = s.budgets.Of(pod)
		}
		if _, refused := s.refused[pod.UID]; refused || len(of) > 1 || !s.takesPart(pod.Namespace) ||
			!s.expendable(pod, than) {
			return candidate{}, false
		}
		each = append(each, candidate{priority: corev1helpers.PodPriority(pod), started: startedAt(pod)})
		all, budgets = append(all, i), append(budgets, of...)
	}
	c := costOf(each, all)
	return candidate{pods: pods, priority: c.highest, started: c.started, budgets: budgets, more: c.count - 1,
		moreSum: c.sum - int64(c.highest)}, true
}

// victims are the pods of the chosen candidates, each once.
func (r *roster) victims(chosen []int) []*corev1.Pod {
	var victims []*corev1.Pod
	for _, c := range chosen {
		for _, pod := range r.candidates[c].pods {
			if !slices.Contains(victims, pod) {
				victims = append(victims, pod)
			}
		}
	}
	return victims
}

// gang are the pods of a PodGroup that have a node and do not leave it.
type gang struct {
	pods []*corev1.Pod
	// least is how many of them it needs; all, where that is not known or they are only disrupted together.
	least int
}

// listGangs is what the pods say of gangs, and the PodGroups, which are asked for only where
// there are such pods.
func (p *Preemptor) listGangs(ctx context.Context, pods []*corev1.Pod) (map[toolscache.ObjectName]*gang, error) {
	gangs := map[toolscache.ObjectName]*gang{}
	for _, pod := range pods {
		name, is := podstate.Gang(pod)
		if !is || pod.Spec.NodeName == "" || pod.DeletionTimestamp != nil {
			continue
		}
		if gangs[name] == nil {
			gangs[name] = &gang{}
		}
		gangs[name].pods = append(gangs[name].pods, pod)
		gangs[name].least++
	}
	if len(gangs) == 0 {
		return gangs, nil
	}
	for _, g := range gangs {
		// Or the same victims would look like others the next time.
		slices.SortFunc(g.pods, byKey)
	}
	// The API server's cache will do: a gang changes its size seldom.
	list, err := p.Groups.PodGroups(metav1.NamespaceAll).List(ctx, metav1.ListOptions{ResourceVersion: "0"})
	if apierrors.IsNotFound(err) {
		return gangs, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list the PodGroups, to know how many pods a gang can do without: %w", err)
	}
	for _, group := range list.Items {
		g := gangs[toolscache.ObjectName{Namespace: group.Namespace, Name: group.Name}]
		mode := group.Spec.DisruptionMode
		if g == nil || mode != nil && mode.All != nil {
			continue
		}
		g.least = 1
		if policy := group.Spec.SchedulingPolicy.Gang; policy != nil {
			g.least = int(policy.MinCount)
		}
	}
	return gangs, nil
}
