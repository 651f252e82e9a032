// SPDX-License-Identifier: Apache-2.0

package preempt

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	toolscache "k8s.io/client-go/tools/cache"
	corev1helpers "k8s.io/component-helpers/scheduling/corev1"

	"github.com/gpushare/dra-driver-gpushare/pkg/controller/podstate"
	"github.com/gpushare/dra-driver-gpushare/pkg/scheduling"
)

// triesMost bounds the search for the fewest victims of a node.
const triesMost = 1000

// situation is what is known of the cluster.
type situation struct {
	// nodes are all, in the order of their names; pods are all that have not ended.
	nodes []*node
	pods  []*corev1.Pod
	// namespaces are the labels of each.
	namespaces map[string]map[string]string
	budgets    *scheduling.Budgets
	gangs      map[toolscache.ObjectName]*gang
	now        time.Time
	// overdue are the pods that terminate for longer than others wait for them.
	overdue map[types.UID]bool
	// rules are the DeviceTaintRules, refused the pods that the cluster does not let be evicted.
	rules   []*resourceapi.DeviceTaintRule
	refused podstate.RefusedPods
	classes []*resourceapi.DeviceClass
	engine  *scheduling.Engine
	// effort is what finding victims for one pod may still cost.
	effort *scheduling.Effort
	// reserved are the nodes on which pods are evicted for another pod.
	reserved map[string]bool
	// evicted are the pods that were evicted for others, which the cache may not know yet.
	evicted map[types.UID]bool
}

// takesPart reports whether pods of a namespace are evicted for others.
func (s situation) takesPart(namespace string) bool { return takePart(s.namespaces[namespace]) }

// errPlanning is why it is not looked for victims any longer.
var errPlanning = errors.New("it takes too long to find out who would have to go")

// planWithin is plan that gives up after a time: others wait as well.
func (s situation) planWithin(
	ctx context.Context, most time.Duration, w wish,
) (*option, string, error) {
	limited, cancel := context.WithTimeoutCause(ctx, most, errPlanning)
	defer cancel()
	o, why, err := s.plan(limited, w)
	if err != nil && ctx.Err() == nil && errors.Is(context.Cause(limited), errPlanning) {
		return nil, "", errPlanning
	}
	return o, why, err
}

// leaving says of pods whether they are about to leave a node. What those hold that leave a
// reserved node is meant for another.
func (s situation) leaving(n *node) func(types.UID) bool {
	if s.reserved[n.Name] {
		return func(types.UID) bool { return false }
	}
	return n.leaves(s.overdue, s.evicted)
}

// plan is whom to evict where; nil where nobody is to be, and then why, for the log.
func (s situation) plan(ctx context.Context, w wish) (*option, string, error) {
	if w.where == nil || scheduling.Unseen(&w.pod.Spec) {
		return nil, "it asks for more than is looked at: volumes, ports, or where other pods are", nil
	}
	for _, c := range w.claims {
		if withAdminAccess(c) {
			w.admin = append(w.admin, c)
		}
	}
	if w.claims = slices.DeleteFunc(slices.Clone(w.claims), withAdminAccess); len(w.claims) == 0 {
		return nil, "all of its claims have adminAccess, which needs nobody to go", nil
	}
	if !slices.ContainsFunc(s.pods, func(pod *corev1.Pod) bool {
		return pod.Spec.NodeName != "" && s.takesPart(pod.Namespace) &&
			s.expendable(pod, corev1helpers.PodPriority(w.pod)) && scheduling.AsksForDevices(pod, counted(pod))
	}) {
		return nil, "no pod of lower priority asks for devices", nil
	}
	w.keptOff, s.effort = s.keepOff(w.pod), scheduling.NewEffort(effortMost)
	var best *option
	for _, n := range s.nodes {
		elsewhere := func(pod *corev1.Pod) bool { return pod.Spec.NodeName != n.Name }
		if len(n.pool) == 0 || scheduling.ClosedTo(ctx, n.Node, w.pod, w.where).By != scheduling.Open ||
			// Who is there does not go for what is here.
			slices.ContainsFunc(w.keptOff.from(n), elsewhere) {
			continue
		}
		o, err := s.option(ctx, w, n, s.leaving(n), best)
		switch {
		case errors.Is(err, errRoom):
			return nil, "there is room on node " + n.Name + ", or is about to be", nil
		case errors.Is(err, errUnallocatable), errors.Is(err, scheduling.ErrUnsearched):
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
