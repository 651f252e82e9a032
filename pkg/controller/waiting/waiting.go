// SPDX-License-Identifier: Apache-2.0

// Package waiting looks at pods that wait for GPUs.
//
// It nominates, as an option, the node on which they leave the most room for the pods after them; or the fullest or the
// emptiest node, by a setting or by the pod's label. The scheduler tries that node first, and all others as ever where
// it has no room: a nomination that is wrong, late or missing keeps no pod from a node.
//
// It tells pods in an Event why the scheduler finds no GPUs for them. The scheduler itself says no more than that it
// could not allocate the claims.
package waiting

import (
	"context"
	"maps"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	utilcache "k8s.io/apimachinery/pkg/util/cache"
	"k8s.io/client-go/metadata"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"github.com/gpushare/dra-driver-gpushare/pkg/controller/cache"
	"github.com/gpushare/dra-driver-gpushare/pkg/controller/manager"
	"github.com/gpushare/dra-driver-gpushare/pkg/controller/podstate"
	"github.com/gpushare/dra-driver-gpushare/pkg/placement"
	"github.com/gpushare/dra-driver-gpushare/pkg/placement/score"
	"github.com/gpushare/dra-driver-gpushare/pkg/report"
	"github.com/gpushare/dra-driver-gpushare/pkg/scheduling"
)

const (
	// everyPod is the key under which the pods that wait for a nomination are looked at again. No pod has it.
	everyPod = "*"
	// settling is how long what is free may change before that.
	settling = 2 * time.Second
	// underway is how long a nomination may take until the cache shows it.
	underway = 5 * time.Second
	// beforehand is how long pods may be kept waiting for their nominations.
	beforehand = 200 * time.Millisecond
)

// Nominations is how nodes are nominated.
type Nominations struct {
	// Client reads claims and rules, Pods writes the status of pods.
	Client Client
	Pods   metadata.Interface
	// Placement is how nodes are ranked for pods whose label says nothing.
	Placement score.Setting
	// Planned is the node on which a pod is expected, empty for any; nil is for none.
	Planned func(*corev1.Pod) string
	// Outcome is told what came of a nomination.
	Outcome func(Outcome)
}

// Nominator nominates nodes.
type Nominator struct {
	Nominations
	Cache    *cache.Reader
	Clock    clock.PassiveClock
	Events   *report.Reporter
	work     *manager.Controller
	waiting  cache.Unscheduled
	starting cache.Starting
	wishes   wishes

	// lookingAgain says that all pods are to be looked at again.
	lookingAgain atomic.Bool
	// mu has one pod looked at at a time, beside what others were promised.
	mu      sync.Mutex
	chooser *chooser
	pods    map[types.UID]*state
	// taught says that the pods that were there before count among what pods ask for.
	taught bool
}

// newNominator makes a Nominator whose sync the queue is to call for each pod without a node.
func newNominator(cfg Config, work *manager.Controller) *Nominator {
	f := newFleet(cfg.Cache)
	n := &Nominator{Nominations: *cfg.Nominations, Cache: cfg.Cache, Clock: cfg.Clock, Events: cfg.Events, work: work,
		waiting: cfg.Cache.NominablePods(), starting: cfg.Cache.StartingPods(),
		chooser: newChooser(f, cfg.Engine), pods: map[types.UID]*state{}}
	n.wishes = wishes{client: n.Client, claims: f.caches.Claims, templates: utilcache.NewLRUExpireCache(templatesMost)}
	n.waiting.On(cache.Handler[*corev1.Pod]{Waits: true, Gone: n.gone, Seen: func(pod *corev1.Pod) {
		nominable := n.nominable(pod)
		n.note(pod, nominable)
		if nominable || placement.AtGate(pod) {
			n.work.Enqueue(cache.Key(pod))
		}
	}})
	n.starting.On(cache.Handler[*corev1.Pod]{Waits: true, Seen: n.bound, Changed: func(_, _ *corev1.Pod) {}})
	f.watch(n.changed)
	// Each change counts: a pod may be promised a node while it gets another one.
	f.pods.On(cache.Handler[*corev1.Pod]{Waits: true, Seen: n.placed, Gone: n.ended})
	return n
}

// changed has all pods looked at again that wait for a nomination, when what is free has settled.
func (n *Nominator) changed() {
	if !n.lookingAgain.Swap(true) {
		n.work.EnqueueAfter(everyPod, settling)
	}
}

// Nominate nominates nodes for pods before something happens that has the scheduler look at them. Where that takes
// long, or this Nominator does not know the cluster yet, it is left.
func (n *Nominator) Nominate(ctx context.Context, pods []*corev1.Pod) {
	if !n.Cache.Synced() {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, beforehand)
	defer cancel()
	for _, pod := range pods {
		if _, err := n.sync(ctx, cache.Key(pod)); err != nil {
			klog.FromContext(ctx).V(2).Info("A pod goes to the scheduler without a nomination", "pod", klog.KObj(pod),
				"err", err)
		}
	}
}

// sync is a manager.Reconcile; the key is that of a pod.
func (n *Nominator) sync(ctx context.Context, key string) (time.Duration, error) {
	pod, waits := n.waiting.Get(key)
	switch {
	case waits && placement.AtGate(pod):
		return n.pass(ctx, pod)
	case !waits || !n.nominable(pod):
		return 0, nil
	}
	return n.look(ctx, pod)
}

// look nominates a node for a pod, if it should have another than it has.
func (n *Nominator) look(ctx context.Context, pod *corev1.Pod) (time.Duration, error) {
	w, err := n.wishOf(ctx, pod)
	if err != nil || len(w.claims) == 0 {
		return 0, err
	}
	d, err := n.decide(ctx, pod, w)
	if err != nil || !d.write {
		return d.again, err
	}
	written, err := nominate(ctx, n.Pods, pod, d.node)
	n.wrote(pod.UID, d.node, written)
	klog.FromContext(ctx).V(4).Info("Nominated a node", "pod", klog.KObj(pod), "node", d.node, "written", written)
	return 0, err
}

// lookAtAll has the pods looked at again that wait without a nomination, or where the scheduler found no room.
func (n *Nominator) lookAtAll(ctx context.Context) error {
	n.lookingAgain.Store(false)
	if err := n.refresh(ctx); err != nil {
		return err
	}
	n.mu.Lock()
	waiting, starting := podstate.ByUID(n.waiting.List()), podstate.ByUID(n.starting.List())
	maps.DeleteFunc(n.pods, func(uid types.UID, _ *state) bool { return waiting[uid] == nil && starting[uid] == nil })
	n.mu.Unlock()
	for _, pod := range waiting {
		_, refused := podstate.Unschedulable(pod)
		if n.nominable(pod) && (refused || pod.Status.NominatedNodeName == "") {
			n.work.Enqueue(cache.Key(pod))
		}
	}
	return nil
}

// refresh reads what has changed of the nodes.
func (n *Nominator) refresh(ctx context.Context) error {
	rules, _, err := cache.DeviceTaintRules(ctx, n.Client)
	n.mu.Lock()
	defer n.mu.Unlock()
	if err == nil {
		n.chooser.setRules(rules)
	} else {
		klog.FromContext(ctx).V(2).Info("Nodes are chosen by the DeviceTaintRules of before", "err", err)
	}
	n.chooser.settle(n.Clock.Now())
	return n.chooser.refresh()
}

// wishOf is what a pod asks for; without claims where there is nothing to nominate by. It is found out once for a pod.
func (n *Nominator) wishOf(ctx context.Context, pod *corev1.Pod) (*wish, error) {
	if n.wishes.allocated(pod) {
		return &wish{}, nil
	}
	n.mu.Lock()
	s, classes := n.pods[pod.UID], n.chooser.classesOf()
	n.mu.Unlock()
	if s != nil && s.classes == classes.version {
		return s.wish, nil
	}
	w, err := n.wishes.of(ctx, pod, scheduling.ClaimForExtended(pod, classes.of))
	if err == nil && len(w.claims) > 0 {
		n.remember(pod, w, classes)
	}
	return w, err
}

// remember remembers what a pod asks for, by these DeviceClasses.
func (n *Nominator) remember(pod *corev1.Pod, w *wish, by classes) {
	n.mu.Lock()
	defer n.mu.Unlock()
	s := n.know(pod.UID)
	s.wish, s.classes = w, by.version
}

// Stranded are the GPUs, by node, that are free and have too little CPU or memory left beside them for the pods that
// come; nil while this Nominator does not know the cluster.
func (n *Nominator) Stranded() map[string]float64 {
	if !n.Cache.Synced() {
		return nil
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if err := n.teach(); err != nil {
		return nil // sync says why
	}
	return n.chooser.index.Lost().Stranded
}

// gone is called for a pod that waits no more: it has a node, or is gone.
func (n *Nominator) gone(pod *corev1.Pod) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if !n.started(pod) {
		delete(n.pods, pod.UID) // else bound has it
	}
	if live, there := n.chooser.fleet.pods.Get(cache.Key(pod)); !there || live.UID != pod.UID {
		n.chooser.promise(promise{uid: pod.UID})
	}
}

// placed is called for a pod that may have a node: what it was promised there counts until the cache shows its claims.
func (n *Nominator) placed(pod *corev1.Pod) {
	if pod.Spec.NodeName == "" {
		return
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.chooser.placed(pod, n.Clock.Now().Add(underway))
}

// ended is called for a pod that is gone or has ended.
func (n *Nominator) ended(pod *corev1.Pod) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.chooser.promise(promise{uid: pod.UID})
}
