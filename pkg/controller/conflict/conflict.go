// SPDX-License-Identifier: Apache-2.0

// Package conflict gets pods going again that the driver refuses because others hold
// the GPU that they were allocated. The scheduler allocates a GPU twice when it
// loses its API server in the midst of a write; others that write allocations may do
// so at any time. Nobody takes an allocation back that a pod holds: where the pod is,
// it can only wait until the others end.
//
// Each node is looked at for itself. Caches tell where it is worth looking: where
// others than those that wait seem to hold a GPU that was allocated again, and seldom
// where a pod has waited for long. What is done about it follows from a look at the API
// server, and only where it has held for a while.
package conflict

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	typedbatchv1 "k8s.io/client-go/kubernetes/typed/batch/v1"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	typedresourcev1 "k8s.io/client-go/kubernetes/typed/resource/v1"
	"k8s.io/client-go/tools/pager"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"github.com/gpushare/dra-driver-gpushare/pkg/controller/cache"
	"github.com/gpushare/dra-driver-gpushare/pkg/controller/manager"
	"github.com/gpushare/dra-driver-gpushare/pkg/controller/podstate"
	"github.com/gpushare/dra-driver-gpushare/pkg/report"
)

// mostReason bounds why a pod conflicts, in bytes: what to do has to fit beside it.
const mostReason = 400

const (
	// Starting is how long a pod may be on its node before it is looked at: most are
	// prepared within a second.
	Starting = 5 * time.Second
	// Patience is how long the driver has to have refused a pod before anything is
	// done. Most others end, or go, in that time if they are about to.
	Patience = 15 * time.Second
	// interval is between looks while there is something to find out, and seldom after
	// a pod has waited for lookedLong for something else, or has been told.
	interval   = 5 * time.Second
	seldom     = time.Minute
	lookedLong = time.Minute
)

// retry is when it is tried again what failed for one pod; the others of the node do not wait for
// it.
var retry = manager.Backoff{Least: interval, Most: 5 * time.Minute}

// Config is what the controller needs.
type Config struct {
	// Cache is asked for the pods that start, claims and ResourceSlices.
	Cache  *cache.Reader
	Claims typedresourcev1.ResourceClaimsGetter
	Core   typedcorev1.PodsGetter
	Jobs   typedbatchv1.JobsGetter
	Events *report.Reporter
	Clock  clock.PassiveClock
	// Evict is whether pods that something makes anew are evicted. Otherwise they are
	// told what to do, like those that nothing makes anew.
	Evict bool
}

type keeper struct {
	Config
	pods   cache.Starting
	claims cache.Claims
	slices cache.Slices

	mu sync.Mutex
	// pendingPods are those that wait, by node and UID; those of a node are for the Reconcile
	// of that node.
	pendingPods map[string]map[types.UID]*wait
	// looked is when a node was last looked at live.
	looked map[string]time.Time
	// evicted is when a pod of an owner was evicted last.
	evicted map[types.UID]time.Time
}

// wait is what is known of a pod that waits.
type wait struct {
	// since is when it was first seen to wait; conflicting since when others are known to hold
	// its GPU, zero where they do not.
	since, conflicting time.Time
	told               bool
	// failures is how often in a row nothing could be done about it, and after when
	// that is tried again.
	failures int
	after    time.Time
}

// New returns the controller. Its keys are nodes; it can have several workers.
func New(cfg Config) *manager.Controller {
	k := newKeeper(cfg)
	work := manager.NewController("conflict", k.sync)
	k.pods.On(cache.Handler[*corev1.Pod]{
		Seen: func(pod *corev1.Pod) {
			if podstate.AwaitsClaims(pod) {
				work.EnqueueAfter(pod.Spec.NodeName, Starting)
			}
		},
		Gone: func(pod *corev1.Pod) { cfg.Events.Forget(pod.UID) },
	})
	return work
}

func newKeeper(cfg Config) *keeper {
	return &keeper{
		Config: cfg, pods: cfg.Cache.StartingPods(), claims: cfg.Cache.Claims(), slices: cfg.Cache.Slices(),
		pendingPods: map[string]map[types.UID]*wait{}, looked: map[string]time.Time{}, evicted: map[types.UID]time.Time{},
	}
}

// sync is a manager.Reconcile; the key is a node.
func (k *keeper) sync(ctx context.Context, node string) (time.Duration, error) {
	n, err := k.cached(node)
	if err != nil {
		return 0, err
	}
	pendingPods := k.notice(n)
	switch {
	case len(pendingPods) == 0:
		return 0, nil
	case !k.due(pendingPods):
		return interval, nil
	case !n.concerned():
		// They wait for claims of other drivers, or the cache is behind.
		return k.again(pendingPods), nil
	case !n.suspicious() && !k.overdue(node, pendingPods):
		k.act(ctx, n, nil, pendingPods)
		return k.again(pendingPods), nil
	}
	conflicts, err := k.look(ctx, &n)
	if err != nil {
		return 0, err
	}
	k.act(ctx, n, conflicts, pendingPods)
	return k.again(pendingPods), nil
}

// cached is what the caches know of a node. Of its pods there are those that wait.
func (k *keeper) cached(node string) (Node, error) {
	n := Node{Name: node, Claims: k.claims.OnNode(node), Pods: k.pods.OnNode(node)}
	published := k.slices.OnNode(node)
	var err error
	if n.GPUs, _, err = GPUsOf(node, published); err != nil {
		return n, err
	}
	n.Partitioned, err = PartitionedOf(node, published)
	return n, err
}

// notice brings what is known of the pods of a node that wait in line with the cache.
func (k *keeper) notice(n Node) map[types.UID]*wait {
	k.mu.Lock()
	defer k.mu.Unlock()
	if len(n.Pods) == 0 {
		delete(k.pendingPods, n.Name)
		delete(k.looked, n.Name)
		return nil
	}
	known := k.pendingPods[n.Name]
	if known == nil {
		known = map[types.UID]*wait{}
		k.pendingPods[n.Name] = known
	}
	there := map[types.UID]bool{}
	for _, pod := range n.Pods {
		there[pod.UID] = true
		if known[pod.UID] == nil {
			known[pod.UID] = &wait{since: k.Clock.Now()}
		}
	}
	maps.DeleteFunc(known, func(uid types.UID, _ *wait) bool { return !there[uid] })
	return known
}

// due says whether a pod has waited for long enough to be looked at.
func (k *keeper) due(pendingPods map[types.UID]*wait) bool {
	for _, w := range pendingPods {
		if k.Clock.Since(w.since) >= Starting {
			return true
		}
	}
	return false
}

// overdue says whether a pod has waited for so long that the caches do not count, and
// is not looked at live more than seldom.
func (k *keeper) overdue(node string, pendingPods map[types.UID]*wait) bool {
	k.mu.Lock()
	last := k.looked[node]
	k.mu.Unlock()
	if k.Clock.Since(last) < seldom {
		return false
	}
	for _, w := range pendingPods {
		if k.Clock.Since(w.since) >= lookedLong {
			return true
		}
	}
	return false
}

func (k *keeper) again(pendingPods map[types.UID]*wait) time.Duration {
	for _, w := range pendingPods {
		if !w.told && (!w.conflicting.IsZero() || k.Clock.Since(w.since) < lookedLong) {
			return interval
		}
	}
	return seldom
}

// look asks the API server which pods there are on the node, and returns which of them
// conflict there by what the cache knows of claims.
func (k *keeper) look(ctx context.Context, n *Node) ([]Conflict, error) {
	k.mu.Lock()
	k.looked[n.Name] = k.Clock.Now()
	k.mu.Unlock()
	n.Pods = nil
	err := pager.New(func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
		return k.Core.Pods(metav1.NamespaceAll).List(ctx, o)
	}).EachListItem(ctx, metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector("spec.nodeName", n.Name).String()},
		func(object runtime.Object) error {
			pod, ok := object.(*corev1.Pod)
			if !ok {
				return fmt.Errorf("among the pods is a %T", object)
			}
			n.Pods = append(n.Pods, pod)
			return nil
		})
	if err != nil {
		return nil, fmt.Errorf("list the pods of node %s, where some do not start: %w", n.Name, err)
	}
	return n.Conflicts(), nil
}

// confirm looks at the claims that have to do with a conflict as the API server has them
// now. It is false where they do not make it one.
func (k *keeper) confirm(ctx context.Context, n Node, r Conflict) (Conflict, bool, error) {
	var live []*resourceapi.ResourceClaim
	for _, known := range n.Claims {
		if !sharesGPUs(known, r.Claim) {
			continue
		}
		c, err := k.Claims.ResourceClaims(known.Namespace).Get(ctx, known.Name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			continue
		}
		if err != nil {
			return r, false, fmt.Errorf("look at claim %s, which has a GPU that pod %s waits for: %w", klog.KObj(known),
				klog.KObj(r.Pod), err)
		}
		live = append(live, c)
	}
	n.Claims = live
	conflicts := n.Conflicts()
	i := slices.IndexFunc(conflicts, func(other Conflict) bool { return other.Pod.UID == r.Pod.UID })
	if i < 0 {
		return r, false, nil
	}
	return conflicts[i], true, nil
}
