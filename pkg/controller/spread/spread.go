// SPDX-License-Identifier: Apache-2.0

// Package spread tells nodes whose shares are spread that a pod waits which may fit there. For the sake of evenness
// such a node holds back what some pods need: several shares of one GPU, several GPUs at once, a GPU that is ahead of
// the others. The node's plugin does not see who waits, and decides itself what it lets go.
package spread

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	typedresourcev1 "k8s.io/client-go/kubernetes/typed/resource/v1"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"github.com/gpushare/dra-driver-gpushare/internal/backoff"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/controller/cache"
	"github.com/gpushare/dra-driver-gpushare/pkg/controller/manager"
	"github.com/gpushare/dra-driver-gpushare/pkg/controller/podstate"
	"github.com/gpushare/dra-driver-gpushare/pkg/devices/view"
	"github.com/gpushare/dra-driver-gpushare/pkg/scheduling"
)

const (
	// everyNode is the controller's only key.
	everyNode = "nodes"
	// soon collects the pods of a burst.
	soon = 500 * time.Millisecond
	// turn is for how long a node is left to the pod that it was told of last.
	turn = 5 * time.Second
	// kindsMost and nodesMost are how many kinds of pods are looked at in a turn, and on how many nodes each.
	kindsMost, nodesMost = 32, 50
	// lookMost is how long the selectors of a pod may take on one node.
	lookMost = 50 * time.Millisecond
)

// rarer is when nodes are told again of a pod that still waits: it may be for something else.
var rarer = backoff.Doubling{Least: turn, Most: time.Minute}

// Config is what the controller works with.
type Config struct {
	// Cache is asked for pods without a node, and the cluster.
	Cache  *cache.Reader
	Client typedresourcev1.ResourceClaimsGetter
	Nodes  typedcorev1.NodeInterface
	Clock  clock.PassiveClock
	// Engine evaluates selectors.
	Engine *scheduling.Engine
}

// kind is what pods that wait alike have in common.
type kind struct {
	// pod is the first of them, which nodes are told of.
	pod *corev1.Pod
	// next is when nodes are told of it, after the node after which they are. times is how often all of them were, at when
	// they last were.
	next  time.Time
	after string
	times int
	at    time.Time
}

type reconciler struct {
	Config
	pods   cache.Unscheduled
	caches cache.Cluster
	// kinds are those of the pods that wait, told is when nodes were told within the last turn. Only the reconciler uses
	// them.
	kinds map[string]*kind
	told  map[string]time.Time
}

// New makes the controller. It is to be run with one worker.
func New(cfg Config) *manager.Controller {
	c := cfg.Cache
	r := &reconciler{Config: cfg, pods: c.UnscheduledPods(), caches: c.Cluster(), kinds: map[string]*kind{},
		told: map[string]time.Time{}}
	work := manager.NewController("spread", r.reconcile)
	look := func() { work.EnqueueAfter(everyNode, soon) }
	changed := func(pod *corev1.Pod) {
		if waits(pod) {
			look()
		}
	}
	r.pods.On(cache.Handler[*corev1.Pod]{Seen: changed, Gone: changed})
	r.caches.Slices.On(cache.Handler[*view.Slice]{Seen: func(slice *view.Slice) {
		if slice.Spread {
			look()
		}
	}, Changed: func(before, after *view.Slice) {
		if after.Spread && !before.Spread {
			look()
		}
	}})
	return work
}

// waits reports whether a pod may wait for GPUs. What the scheduler says of a gang does not always tell.
func waits(pod *corev1.Pod) bool {
	said, unschedulable := podstate.Unschedulable(pod)
	_, ofGang := podstate.Gang(pod)
	return unschedulable && len(pod.Spec.ResourceClaims) > 0 &&
		(strings.Contains(said, podstate.NoDevices) || ofGang && !strings.Contains(said, "Insufficient "))
}

// reconcile is a manager.Reconcile: one turn of the nodes.
func (r *reconciler) reconcile(ctx context.Context, _ string) (time.Duration, error) {
	nodes := r.spreadNodes()
	r.group(nodes)
	now := r.Clock.Now()
	maps.DeleteFunc(r.told, func(_ string, at time.Time) bool { return now.Sub(at) >= turn })
	kinds := slices.SortedFunc(maps.Values(r.kinds), func(a, b *kind) int {
		return cmp.Or(a.next.Compare(b.next), a.at.Compare(b.at))
	})
	again := time.Duration(0)
	for i, k := range kinds {
		if i < kindsMost && !k.next.After(now) {
			if err := r.look(ctx, k, nodes, now); err != nil {
				return 0, err
			}
		}
		again = manager.Earlier(again, max(k.next.Sub(now), soon))
	}
	return again, nil
}

// spreadNodes are the names of the nodes whose shares are spread, in order.
func (r *reconciler) spreadNodes() []string {
	var names []string
	for _, slice := range r.caches.Slices.List() {
		if slice.Spread {
			names = append(names, slice.Node)
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// group groups the pods that wait into kinds, if there are nodes. When the first of a kind waits no more, the next is
// new to the nodes.
func (r *reconciler) group(nodes []string) {
	first := map[string]*corev1.Pod{}
	if len(nodes) > 0 {
		for _, pod := range r.pods.List() {
			if !waits(pod) {
				continue
			}
			key := kindOf(pod)
			if other := first[key]; other == nil || podstate.ByAge(pod, other) < 0 {
				first[key] = pod
			}
		}
	}
	maps.DeleteFunc(r.kinds, func(key string, _ *kind) bool { return first[key] == nil })
	for key, pod := range first {
		if k := r.kinds[key]; k == nil || k.pod.UID != pod.UID {
			r.kinds[key] = &kind{}
		}
		r.kinds[key].pod = pod
	}
}

// kindOf is the same for pods that go to the same nodes with claims of the same templates.
func kindOf(pod *corev1.Pod) string {
	where, err := scheduling.Question(pod, nil)
	kind := pod.Namespace + "/" + string(where[:])
	for _, c := range pod.Spec.ResourceClaims {
		if err != nil || c.ResourceClaimTemplateName == nil {
			return cache.Key(pod)
		}
		kind += "/" + *c.ResourceClaimTemplateName
	}
	return kind
}

// look tells nodes of a pod, one after the other, and decides when to go on: with the node that is left to another pod
// for the moment, or, after some time, with the first again.
func (r *reconciler) look(ctx context.Context, k *kind, nodes []string, now time.Time) error {
	k.next = now.Add(turn)
	w, err := r.wishOf(ctx, k.pod)
	if err != nil {
		return err
	}
	start, _ := slices.BinarySearch(nodes, k.after+"\x00")
	if w != nil {
		for i, node := range nodes[start:] {
			if _, told := r.told[node]; told || i == nodesMost {
				return nil
			}
			if err := r.tell(ctx, w, node, now); err != nil {
				return err
			}
			k.after = node
		}
		k.at = now
	}
	k.times++
	k.after, k.next = "", now.Add(rarer.After(k.times))
	return nil
}

// tell tells a node of a pod that may fit there.
func (r *reconciler) tell(ctx context.Context, w *wish, node string, now time.Time) error {
	fits, err := r.mayFit(ctx, w, node)
	if err != nil || !fits {
		return err
	}
	text, err := w.waiting(now).Encode()
	if err != nil {
		return err
	}
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"annotations": map[string]string{v1alpha1.AnnotationWaiting: text}},
	})
	if err != nil {
		return fmt.Errorf("encode an annotation of node %s: %w", node, err)
	}
	_, err = r.Nodes.Patch(ctx, node, types.MergePatchType, patch,
		metav1.PatchOptions{FieldManager: v1alpha1.ControllerName})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("tell node %s that claim %s waits: %w", node, w.claim, err)
	}
	r.told[node] = now
	klog.FromContext(ctx).V(2).Info("Told a node that spreads shares of a pod that waits", "pod", klog.KObj(w.pod),
		"node", node)
	return nil
}
