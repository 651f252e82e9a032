// SPDX-License-Identifier: Apache-2.0

package preempt

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/types"
	corev1helpers "k8s.io/component-helpers/scheduling/corev1"
)

const (
	// overdue is how long after its time a pod that terminates counts as one that is about to
	// go: its node may be away.
	overdue = time.Minute
	// triesMost bounds the search for the fewest victims of a node.
	triesMost = 1000
)

// situation is what is known of the cluster.
type situation struct {
	// nodes are all, in the order of their names; pods are all that have not ended.
	nodes   []*node
	pods    []*corev1.Pod
	budgets []*policyv1.PodDisruptionBudget
	now     time.Time
	// reserved are the nodes on which pods are evicted for another pod.
	reserved map[string]bool
}

// plan is whom to evict where; nil where nobody is to be, and then why, for the log.
func (s situation) plan(ctx context.Context, a allocating, w wish, said string) (*option, string, error) {
	if needsOthers(w.pod) {
		return nil, "it has to be beside other pods, which could be the victims", nil
	}
	if !slices.ContainsFunc(s.pods, func(pod *corev1.Pod) bool {
		return pod.Spec.NodeName != "" && expendable(pod, corev1helpers.PodPriority(w.pod)) && asksForDevices(pod)
	}) {
		return nil, "no pod of lower priority asks for devices", nil
	}
	var now, later []*node
	for _, n := range s.nodes {
		switch {
		case !n.admits(ctx, w.pod):
		case w.resourcesFit(n, n.free()):
			now = append(now, n)
		default:
			later = append(later, n)
		}
	}
	// The scheduler looks at a node's devices last. Where it says of fewer nodes that devices
	// are what they lack, others lack something that is not looked at here.
	if len(now) != nodesLackingDevices(said) {
		return nil, "the nodes that lack nothing but devices are others than the scheduler speaks of", nil
	}
	if !plain(w.pod, s.pods) {
		later = nil
	}
	var best *option
	for i, n := range slices.Concat(now, later) {
		if len(n.pool) == 0 {
			continue
		}
		o, err := a.option(ctx, w, n, s.budgets, s.now, s.reserved[n.Name], best)
		switch {
		case errors.Is(err, errRoom) && i < len(now):
			return nil, "there is room on node " + n.Name + ", or is about to be", nil
		case errors.Is(err, errRoom):
			// It lacks other resources than devices: for these the scheduler evicts pods by itself.
		case errors.Is(err, errUnallocatable):
			return nil, err.Error(), nil
		case err != nil:
			return nil, "", err
		case o != nil && (best == nil || o.cost.compare(best.cost) < 0):
			best = o
		}
	}
	switch {
	case best == nil:
		return nil, "it would not fit on any node without pods of lower priority that may be evicted", nil
	case best.leaving:
		return nil, "pods are leaving the best node, " + best.node.Name, nil
	}
	return best, "", nil
}

// key is the same for the same victims on the same node.
func (o *option) key() string {
	key := []string{o.node.Name}
	for _, pod := range o.victims {
		key = append(key, string(pod.UID))
	}
	return strings.Join(key, " ")
}

// uids are those of the victims.
func (o *option) uids() []types.UID {
	var uids []types.UID
	for _, pod := range o.victims {
		uids = append(uids, pod.UID)
	}
	return uids
}
