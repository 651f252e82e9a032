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

	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/controller/cache"
	"github.com/gpushare/dra-driver-gpushare/pkg/controller/podstate"
	"github.com/gpushare/dra-driver-gpushare/pkg/devices/view"
	"github.com/gpushare/dra-driver-gpushare/pkg/explain"
	"github.com/gpushare/dra-driver-gpushare/pkg/explain/advice"
	"github.com/gpushare/dra-driver-gpushare/pkg/report"
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
	client Client
	pods   cache.Unscheduled
	caches cache.Cluster

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
	e := &explainer{client: cfg.Client, engine: cfg.Engine, pods: c.UnscheduledPods(), caches: c.Cluster(),
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
	e.caches.Nodes.On(cache.Noting(func(*cache.Node) { count() },
		func(before, after *cache.Node) bool { return maps.Equal(before.Labels, after.Labels) }))
	e.caches.Slices.On(cache.Noting(func(*view.Slice) { count() }, (*view.Slice).Offers))
	e.caches.Classes.On(cache.Noting(func(*resourceapi.DeviceClass) { count() }, cache.SameVersion))
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
	advised := advice.Of(pod, advice.Cluster{
		Served: func(name corev1.ResourceName) bool {
			return e.cluster.ClassOf(name) != nil || e.caches.Nodes.Serve(name)
		},
		OnSomeNode: func(key string) bool { return e.cluster.Labels[key] },
	})
	// Where the project that the pod is written for runs, nothing is advised.
	if option := advice.Option(pod); advised != "" && option != "" {
		return advised + ". " + option
	}
	return advised
}

// refresh has cluster be what is in the caches.
func (e *explainer) refresh() error {
	changes, now := e.changes.Load(), time.Now()
	if e.cluster != nil && changes == e.seen && (e.cluster.Until().IsZero() || now.Before(e.cluster.Until())) {
		return nil
	}
	published := scheduling.Published{Slices: e.caches.Slices.List(), Labels: map[string]map[string]string{},
		Closed: e.caches.Nodes.Closed, Classes: e.caches.Classes.List(), Now: now}
	for _, node := range e.caches.Nodes.List() {
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

// tellStatic tells a static pod that asks for GPUs as on ACK, on a node that offers some of this driver's. It waits for
// nothing: the kubelet starts it, so it is told at once.
func (r *Reconciler) tellStatic(pod *corev1.Pod) {
	if !cache.IsStaticAsking(pod) || len(r.explainer.caches.Slices.OnNode(pod.Spec.NodeName)) == 0 {
		return
	}
	r.Events.Warn(report.Pod(pod.Namespace, pod.Name, pod.UID), v1alpha1.ReasonClaimTemplateNotMade,
		"A static pod runs without a GPU of this driver: the kubelet starts it without the scheduler, and it cannot have "+
			"claims. Have a DaemonSet or a Deployment start the pod: docs/legacy.md")
}
