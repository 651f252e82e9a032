// SPDX-License-Identifier: Apache-2.0

package preempt

import (
	"context"
	"errors"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	corev1helpers "k8s.io/component-helpers/scheduling/corev1"

	"github.com/gpushare/dra-driver-gpushare/pkg/devices/view"
	"github.com/gpushare/dra-driver-gpushare/pkg/scheduling"
)

// fit reports whether the claims of a pod fit on the node without what the pods hold that are gone.
func (s situation) fit(
	ctx context.Context, n *node, offered []*resourceapi.ResourceSlice, claims []*resourceapi.ResourceClaim,
	gone func(types.UID) bool,
) (bool, error) {
	if err := ctx.Err(); err != nil {
		return false, err
	}
	allocator, err := s.engine.Allocator(ctx,
		scheduling.Snapshot{Slices: offered, Claims: n.claims, Classes: s.classes}, gone)
	if err != nil {
		return false, fmt.Errorf("allocate from node %s: %w", n.Name, err)
	}
	_, fits, err := allocator.Fit(ctx, n.Node, claims, s.effort)
	switch {
	case ctx.Err() != nil:
		return false, ctx.Err()
	case errors.Is(err, scheduling.ErrUnsearched):
		return false, fmt.Errorf("node %s: %w", n.Name, err)
	case err != nil:
		// A claim that nobody can allocate is for the scheduler to tell of.
		return false, errUnallocatable
	}
	return fits, nil
}

// errUnallocatable says that the scheduler's allocator cannot do anything with the claims.
var errUnallocatable = errors.New("the claims cannot be allocated anywhere")

// leaves says of pods whether they are about to leave the node: they are gone, were evicted or,
// since not too long ago, are terminating.
func (n *node) leaves(overdue, evicted map[types.UID]bool) func(types.UID) bool {
	stay := map[types.UID]bool{}
	for _, pod := range n.pods {
		if pod.DeletionTimestamp == nil {
			stay[pod.UID] = !evicted[pod.UID]
		} else {
			stay[pod.UID] = overdue[pod.UID]
		}
	}
	return func(uid types.UID) bool { return !stay[uid] }
}

// option is how a pod could get devices of a node.
type option struct {
	node    *node
	victims []*corev1.Pod
	cost    cost
	// leaving says that the victims are enough only with others of the node's pods that are about
	// to go.
	leaving bool
}

// errRoom says that there is room for a pod without anybody's going, or will be in a moment.
var errRoom = errors.New("there is room")

// option finds the victims of a node without which the pod fits there; nil where there are
// none, or none that cost less than the best of other nodes. leaves says who is about to leave
// the node.
func (s situation) option(
	ctx context.Context, w wish, n *node, leaves func(types.UID) bool, best *option,
) (*option, error) {
	offered, failed := view.ForAllocator(n.Name, n.pool)
	offered = scheduling.WithRules(offered, s.rules)
	fit := func(claims []*resourceapi.ResourceClaim, gone func(types.UID) bool) bool {
		if failed != nil {
			return false
		}
		ok, err := s.fit(ctx, n, offered, claims, gone)
		failed = err
		return ok
	}
	fits := func(gone func(types.UID) bool) bool { return fit(w.claims, gone) }
	// Counted GPUs have to be free for adminAccess, too, but nobody goes for that.
	adminFits := func(gone func(types.UID) bool) bool {
		return len(w.admin) == 0 || fit(slices.Concat(w.claims, w.admin), gone)
	}
	keepers := w.keptOff.from(n)
	kept := func(gone func(types.UID) bool) bool {
		return slices.ContainsFunc(keepers, func(pod *corev1.Pod) bool { return !gone(pod.UID) })
	}
	beside := func(gone func(types.UID) bool) bool { return w.resourcesFit(n, n.without(gone)) && !kept(gone) }
	switch enough := fits(leaves); {
	case failed != nil:
		return nil, failed
	case enough && beside(leaves) && adminFits(leaves):
		return nil, errRoom
	case enough || s.reserved[n.Name]:
		// Where it lacks other resources than devices, the scheduler evicts pods by itself.
		return nil, failed
	}
	holders := n.holders()
	for _, pod := range keepers {
		if _, holds := holders[pod.UID]; holds {
			// It has to go, whatever those hold that are like it.
			holders[pod.UID] = ""
		}
	}
	r := s.rosterOf(n, holders, corev1helpers.PodPriority(w.pod))
	var most *cost
	if best != nil {
		if best.cost.compare(least(r.candidates)) <= 0 {
			return nil, nil
		}
		most = &best.cost
	}
	without := func(victims []*corev1.Pod) (alone, soon func(types.UID) bool) {
		alone = func(uid types.UID) bool {
			return slices.ContainsFunc(victims, func(pod *corev1.Pod) bool { return pod.UID == uid })
		}
		return alone, func(uid types.UID) bool { return leaves(uid) || alone(uid) }
	}
	chosen := choose(r.candidates, r.allowed, triesMost, most, func(candidates []int) bool {
		_, gone := without(r.victims(candidates))
		return beside(gone) && fits(gone)
	})
	o := &option{node: n, victims: r.victims(chosen), cost: costOf(r.candidates, chosen)}
	alone, gone := without(o.victims)
	if failed != nil || chosen == nil || len(o.victims) > podsMost || !adminFits(gone) {
		return nil, failed
	}
	o.leaving = !beside(alone) || !fits(alone) || !adminFits(alone)
	if failed != nil {
		return nil, failed
	}
	return o, nil
}
