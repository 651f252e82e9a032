// SPDX-License-Identifier: Apache-2.0

// Package pending tells, in an Event of a pod that waits for GPUs, why the
// scheduler finds none for it. The scheduler itself says no more than that it
// could not allocate the claims.
package pending

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	typedresourcev1 "k8s.io/client-go/kubernetes/typed/resource/v1"
	toolscache "k8s.io/client-go/tools/cache"

	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/controller/cache"
	"github.com/gpushare/dra-driver-gpushare/pkg/controller/manager"
	"github.com/gpushare/dra-driver-gpushare/pkg/controller/podstate"
	"github.com/gpushare/dra-driver-gpushare/pkg/devices/view"
	"github.com/gpushare/dra-driver-gpushare/pkg/explain"
	"github.com/gpushare/dra-driver-gpushare/pkg/explain/advice"
	"github.com/gpushare/dra-driver-gpushare/pkg/report"
	"github.com/gpushare/dra-driver-gpushare/pkg/scheduling"
)

// RepeatAfter is after how long a pod that still waits is told again, and looked
// at again though nothing seems to have changed.
const RepeatAfter = 5 * time.Minute

const (
	// patience is how long a pod waits before it is told why. Most pods that the
	// scheduler refuses at first are placed within moments, when others end or
	// what was applied together with them is there.
	patience = 5 * time.Second
	// settling is how long what the nodes offer may change before all pods are
	// looked at again: a rollout of the plugin changes each node in turn.
	settling = 10 * time.Second
	// explainMost bounds the search for a way to serve all requests of one pod, in nodes, and
	// explainTime all that is done to explain one; explainCost is about a second of
	// processor time, and as much as ten selectors may cost the scheduler.
	explainMost = 2
	explainTime = 10 * time.Second
	explainCost = 10 * resourceapi.CELSelectorExpressionMaxCost
)

// messageMost is the longest message, in bytes, that an Event may have in the API
// events.k8s.io.
const messageMost = 1024

// Config is what the controller needs.
type Config struct {
	// Cache is asked for pods without a node, ResourceSlices, DeviceClasses, nodes and claims.
	Cache  *cache.Reader
	Client Client
	// Closed is what keeps pods from a node: its taints, and whether it takes new pods.
	Closed func(node string) corev1.NodeSpec
	// Offered reports whether a device plugin of some node serves a resource.
	Offered func(corev1.ResourceName) bool
	// Engine finds what is free.
	Engine *scheduling.Engine
	// Events should repeat after RepeatAfter.
	Events *report.Reporter
}

// Client reads claims, and the rules by which administrators taint devices.
type Client interface {
	typedresourcev1.ResourceClaimsGetter
	typedresourcev1.DeviceTaintRulesGetter
}

// everyPod is the key under which all pods are looked at again. No pod has it.
const everyPod = "*"

type watcher struct {
	Config
	pods    cache.Unscheduled
	slices  cache.Slices
	classes cache.Classes
	claims  cache.Claims
	nodes   cache.Nodes
	work    *manager.Controller
	// changes counts what the cluster is made of; seen is the count that cluster
	// was made at. Only sync uses what follows it.
	changes atomic.Int64
	seen    int64
	// failing says that some pod's Explanation is Failing.
	failing   atomic.Bool
	explainer *explain.Explainer
	cluster   *explain.Cluster
	budget    *report.Budget
	looks     *looks
	// rulesUnknown says that rules may close devices of which it is not known.
	rulesUnknown bool
	// memories are by the pods' keys.
	memories map[string]*memory
}

// New returns the controller. It is to be run with one worker.
func New(cfg Config) *manager.Controller {
	c := cfg.Cache
	w := &watcher{Config: cfg, pods: c.UnscheduledPods(), slices: c.Slices(), classes: c.Classes(), claims: c.Claims(),
		nodes:     c.Nodes(),
		explainer: explain.New(cfg.Engine, explain.Limits{Cost: explainCost, Time: explainTime, Combined: explainMost}),
		budget:    report.NewBudget(RepeatAfter), memories: map[string]*memory{}}
	w.looks = newLooks(w.newFinder, time.Now)
	w.work = manager.NewController("pending", w.sync)
	forget := func(pod *corev1.Pod) { w.Events.Forget(pod.UID) }
	w.pods.On(cache.Handler[*corev1.Pod]{Seen: w.changedPod, Gone: forget})
	c.StartingPods().On(cache.Handler[*corev1.Pod]{Seen: w.tellStatic, Gone: forget})
	changed := func(*cache.Node) { w.changedCluster() }
	w.nodes.On(cache.Handler[*cache.Node]{Seen: changed, Gone: changed, Changed: w.changedNode})
	w.slices.On(changes(w, (*view.Slice).Offers))
	w.classes.On(changes(w, func(before, after *resourceapi.DeviceClass) bool {
		return before.ResourceVersion == after.ResourceVersion
	}))
	return w.work
}

// changes has it noted what the cluster is made of: alike reports whether an update, such as a resync,
// leaves that as it was.
func changes[T any](w *watcher, alike func(before, after T) bool) cache.Handler[T] {
	changed := func(T) { w.changedCluster() }
	return cache.Handler[T]{Seen: changed, Gone: changed, Changed: func(before, after T) {
		if !alike(before, after) {
			w.changedCluster()
		}
	}}
}

// changedNode notes of a node what cluster has of it. What keeps pods off the node is looked up when it is asked for.
func (w *watcher) changedNode(before, after *cache.Node) {
	switch {
	case !maps.Equal(before.Labels, after.Labels):
		w.changedCluster()
	case w.failing.Load() && !takesAlike(before, after):
		w.work.EnqueueAfter(everyPod, settling)
	}
}

// takesAlike reports whether a node takes the pods that it took: a taint that keeps nobody off does not matter, nor
// does since when one is there.
func takesAlike(before, after *cache.Node) bool {
	keepOff := func(taints []corev1.Taint) (out []corev1.Taint) {
		for _, t := range taints {
			if t.Effect != corev1.TaintEffectPreferNoSchedule {
				out = append(out, corev1.Taint{Key: t.Key, Value: t.Value, Effect: t.Effect})
			}
		}
		return out
	}
	return before.Unschedulable == after.Unschedulable && slices.Equal(keepOff(before.Taints), keepOff(after.Taints))
}

func (w *watcher) changedCluster() {
	w.changes.Add(1)
	w.work.EnqueueAfter(everyPod, settling)
}

func (w *watcher) changedPod(pod *corev1.Pod) {
	if _, waits := podstate.Unschedulable(pod); waits {
		w.work.EnqueueAfter(cache.Key(pod), patience)
	}
}

// sync is a manager.Reconcile; the key is that of a pod, or everyPod.
func (w *watcher) sync(ctx context.Context, key string) (time.Duration, error) {
	if key == everyPod {
		w.lookAtAll()
		return 0, nil
	}
	pod, exists := w.pods.Get(key)
	said, waits := "", false
	if exists {
		said, waits = podstate.Unschedulable(pod)
	}
	if !waits {
		delete(w.memories, key)
		return 0, nil
	}
	if w.outdated() {
		if err := w.look(); err != nil {
			return 0, err
		}
	}
	a, err := w.explain(ctx, pod, said)
	if now, waits := w.pods.Get(key); !waits || now.UID != pod.UID {
		delete(w.memories, key)
		return 0, nil
	}
	if err != nil || a.stays {
		return a.again, err
	}
	a.add(". ", advice.Of(pod, advice.Cluster{
		Served:     func(name corev1.ResourceName) bool { return w.cluster.ClassOf(name) != nil || w.Offered(name) },
		OnSomeNode: func(key string) bool { return w.cluster.Labels[key] },
	}))
	switch {
	case a.text == "":
		w.Events.Clear(pod.UID, v1alpha1.ReasonClaimWaiting)
	case w.budget.Take(pod.Namespace, pod.UID, time.Now()):
		w.Events.WarnOf(report.Pod(pod.Namespace, pod.Name, pod.UID), v1alpha1.ReasonClaimWaiting, a.about, cut(a.text))
	}
	return cmp.Or(a.again, RepeatAfter), nil
}

// lookAtAll has all pods that wait looked at again.
func (w *watcher) lookAtAll() {
	w.failing.Store(false)
	for _, pod := range w.pods.List() {
		if _, waits := podstate.Unschedulable(pod); waits {
			w.work.Enqueue(cache.Key(pod))
		}
	}
}

// outdated reports whether cluster is not what is in the caches any more.
func (w *watcher) outdated() bool {
	return w.cluster == nil || w.changes.Load() != w.seen ||
		!w.cluster.Until().IsZero() && !time.Now().Before(w.cluster.Until())
}

// look takes what is in the caches.
func (w *watcher) look() error {
	changes := w.changes.Load()
	published := scheduling.Published{Slices: w.slices.List(), Labels: map[string]map[string]string{}, Closed: w.Closed,
		Classes: w.classes.List(), Now: time.Now()}
	for _, node := range w.nodes.List() {
		published.Labels[node.Name] = node.Labels
	}
	cluster, err := w.explainer.Look(published)
	if err != nil {
		return err
	}
	w.cluster, w.seen = cluster, changes
	return nil
}

// speaks reports whether a pod is told for its gang, as the first by name of its pods that wait: the others would be
// told the same.
func (w *watcher) speaks(pod *corev1.Pod, gang toolscache.ObjectName) bool {
	return !slices.ContainsFunc(w.pods.Gang(gang), func(other *corev1.Pod) bool {
		_, waits := podstate.Unschedulable(other)
		return waits && other.Name < pod.Name
	})
}

// cut shortens a message to what the API server takes.
func cut(message string) string {
	if len(message) <= messageMost {
		return message
	}
	return strings.ToValidUTF8(message[:messageMost-len("…")], "") + "…"
}
