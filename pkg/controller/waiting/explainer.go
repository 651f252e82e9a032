// SPDX-License-Identifier: Apache-2.0

package waiting

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	toolscache "k8s.io/client-go/tools/cache"

	"github.com/gpushare/dra-driver-gpushare/pkg/controller/cache"
	"github.com/gpushare/dra-driver-gpushare/pkg/controller/podstate"
	"github.com/gpushare/dra-driver-gpushare/pkg/devices/view"
	"github.com/gpushare/dra-driver-gpushare/pkg/explain"
	"github.com/gpushare/dra-driver-gpushare/pkg/explain/advice"
	"github.com/gpushare/dra-driver-gpushare/pkg/scheduling"
)

const (
	// explainMost bounds the search for a way to serve all requests of one pod, in nodes, and
	// explainTime all that is done to explain one; explainCost is about a second of
	// processor time, and as much as ten selectors may cost the scheduler.
	explainMost = 2
	explainTime = 10 * time.Second
	explainCost = 10 * resourceapi.CELSelectorExpressionMaxCost
)

// explainer finds what there is to say to pods that the scheduler refused. It is for one goroutine at a time.
type explainer struct {
	client  Client
	pods    cache.Unscheduled
	slices  cache.Slices
	classes cache.Classes
	claims  cache.Claims
	nodes   cache.Nodes

	// changes counts what the cluster is made of; seen is the count that cluster was made at.
	changes   atomic.Int64
	seen      int64
	explainer *explain.Explainer
	cluster   *explain.Cluster
	rooms     *rooms
	engine    *scheduling.Engine
	// cpusTold is what cpuFaults said at cpusRead.
	cpusRead time.Time
	cpusTold string
	// rulesUnknown says that rules may close devices of which it is not known.
	rulesUnknown bool
}

func newExplainer(cfg Config) *explainer {
	c := cfg.Cache
	e := &explainer{client: cfg.Client, engine: cfg.Engine, pods: c.UnscheduledPods(), slices: c.Slices(),
		classes: c.Classes(), claims: c.Claims(), nodes: c.Nodes(),
		explainer: explain.New(cfg.Engine, explain.Limits{Cost: explainCost, Time: explainTime, Combined: explainMost})}
	e.rooms = newRooms(e.newFinder, cfg.Clock.Now)
	return e
}

// watch has changed called when what the pods were told may not hold any more.
func (e *explainer) watch(changed func()) {
	count := func() {
		e.changes.Add(1)
		changed()
	}
	// Taints and cordons are looked up when they are asked for.
	e.nodes.On(unlike(func(before, after *cache.Node) bool { return maps.Equal(before.Labels, after.Labels) }, count))
	e.slices.On(unlike((*view.Slice).Offers, count))
	e.classes.On(unlike(func(before, after *resourceapi.DeviceClass) bool {
		return before.ResourceVersion == after.ResourceVersion
	}, count))
}

// unlike has a change noted unless it leaves an object alike, as a resync does.
func unlike[T any](alike func(before, after T) bool, changed func()) cache.Handler[T] {
	seen := func(T) { changed() }
	return cache.Handler[T]{Seen: seen, Gone: seen, Changed: func(before, after T) {
		if !alike(before, after) {
			changed()
		}
	}}
}

// answer finds what there is to say to a pod.
func (e *explainer) answer(ctx context.Context, l *look) (answer, error) {
	if err := e.refresh(); err != nil {
		return answer{}, err
	}
	a, err := e.explain(ctx, l)
	if err != nil || a.stays {
		return a, err
	}
	a.add(". ", e.advised(l.pod))
	a.add(". ", pinnedAdvice(l.pod))
	a.again = cmp.Or(a.again, RepeatAfter)
	return a, nil
}

// advised is what the pod's author is to write instead of words of other projects.
func (e *explainer) advised(pod *corev1.Pod) string {
	return advice.Of(pod, advice.Cluster{
		Served:     func(name corev1.ResourceName) bool { return e.cluster.ClassOf(name) != nil || e.nodes.Serve(name) },
		OnSomeNode: func(key string) bool { return e.cluster.Labels[key] },
	})
}

// refresh has cluster be what is in the caches.
func (e *explainer) refresh() error {
	changes, now := e.changes.Load(), time.Now()
	if e.cluster != nil && changes == e.seen && (e.cluster.Until().IsZero() || now.Before(e.cluster.Until())) {
		return nil
	}
	published := scheduling.Published{Slices: e.slices.List(), Labels: map[string]map[string]string{},
		Closed: e.nodes.Closed, Classes: e.classes.List(), Now: now}
	for _, node := range e.nodes.List() {
		published.Labels[node.Name] = node.Labels
	}
	cluster, err := e.explainer.Look(published)
	if err != nil {
		return err
	}
	e.cluster, e.seen = cluster, changes
	return nil
}

// speaks reports whether a pod is told for its gang, as the first by name of its pods that wait: the others would be
// told the same.
func (e *explainer) speaks(pod *corev1.Pod, gang toolscache.ObjectName) bool {
	return !slices.ContainsFunc(e.pods.Gang(gang), func(other *corev1.Pod) bool {
		_, waits := podstate.Unschedulable(other)
		return waits && other.Name < pod.Name
	})
}
