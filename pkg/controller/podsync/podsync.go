// SPDX-License-Identifier: Apache-2.0

// Package podsync has the kubelet sync a pod again whose claims it could not have
// prepared.
//
// The kubelet takes a pod whose NodePrepareResources failed for one that it has synced,
// and comes back to it when it syncs all pods: after 60 to 90 seconds. Most reasons pass
// within moments: the API server's node authorizer does not know yet that the claim
// belongs to the node, or the driver's plugin is being restarted. A changed annotation of
// the pod makes the kubelet sync it at once.
//
// A plugin that ends again and again is away for longer than the times at which pods are
// synced are apart by then. So the pods of a node are synced at once when its plugin is
// ready again, too.
//
// The kubelet does not say in the pod's status that it failed. What shows is that the pod
// has no sandbox yet, which is true of a slow start as well; for such a pod a sync does
// nothing but cost a write and a look.
package podsync

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/metadata"
	"k8s.io/dynamic-resource-allocation/resourceclaim"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	gpuclaim "github.com/gpushare/dra-driver-gpushare/pkg/claim"
	"github.com/gpushare/dra-driver-gpushare/pkg/controller/cache"
	"github.com/gpushare/dra-driver-gpushare/pkg/controller/manager"
	"github.com/gpushare/dra-driver-gpushare/pkg/controller/podstate"
)

// schedule says how long after it was first seen a pod is synced for the first, second, …
// time. What has not passed by its end is not about to: from then on the kubelet's own
// interval does.
var schedule = []time.Duration{
	2 * time.Second, 4 * time.Second, 6 * time.Second, 9 * time.Second, 13 * time.Second,
	20 * time.Second, 30 * time.Second, 45 * time.Second, 70 * time.Second, 100 * time.Second,
}

// apart is how long there is between two syncs of a pod at least, however late the first
// one was: the kubelet needs about a second for each.
const apart = 2 * time.Second

// Config is what the controller needs.
type Config struct {
	// Cache is asked for the pods that start, claims and the pods of the node agents, without which
	// the controller works.
	Cache *cache.Reader
	// Client writes the pods' annotations. Its rate bounds how many pods are synced in a
	// second.
	Client metadata.Interface
	Clock  clock.PassiveClock
}

type reconciler struct {
	Config
	pods   cache.Starting
	claims cache.Claims

	// known has, by namespace/name, what is known of the pods that start. Only the Reconcile of a key uses its entry.
	known sync.Map
	// returned is when the plugin of a node was last seen to be ready again.
	returned sync.Map
}

// starting is what is known of a pod that starts.
type starting struct {
	uid types.UID
	// first is when it was first seen without a sandbox, last when it was synced last,
	// and syncs how often it was.
	first, last time.Time
	syncs       int
}

// New returns the controller. Its keys are pods; it can have several workers.
func New(cfg Config) *manager.Controller {
	r := &reconciler{Config: cfg, pods: cfg.Cache.StartingPods(), claims: cfg.Cache.Claims()}
	work := manager.NewController("podsync", r.reconcile)
	look := func(pod *corev1.Pod) { work.Enqueue(cache.Key(pod)) }
	awaits := func(pod *corev1.Pod) {
		if podstate.AwaitsClaims(pod) {
			look(pod)
		}
	}
	r.pods.On(cache.Handler[*corev1.Pod]{
		Seen: awaits, Gone: look,
		Changed: func(before, after *corev1.Pod) {
			awaits(before)
			awaits(after)
		},
	})
	cfg.Cache.PluginPods().On(cache.Handler[*corev1.Pod]{Changed: func(before, after *corev1.Pod) {
		if !ready(before) && ready(after) {
			r.pluginReturned(after.Spec.NodeName, look)
		}
	}})
	return work
}

// ready reports whether the kubelet has registered the plugin: that is what its startup probe
// asks for.
func ready(plugin *corev1.Pod) bool {
	notReady := func(c corev1.ContainerStatus) bool { return !c.Ready }
	return len(plugin.Status.ContainerStatuses) > 0 && !slices.ContainsFunc(plugin.Status.ContainerStatuses, notReady)
}

// pluginReturned has the pods of the node looked at that start.
func (r *reconciler) pluginReturned(node string, look func(*corev1.Pod)) {
	r.returned.Store(node, r.Clock.Now())
	for _, pod := range r.pods.OnNode(node) {
		look(pod)
	}
}

// reconcile is a manager.Reconcile; the key is that of a pod.
func (r *reconciler) reconcile(ctx context.Context, key string) (time.Duration, error) {
	pod, exists := r.pods.Get(key)
	// A kubelet that has not seen the pod yet needs no reminder.
	if !exists || !podstate.AwaitsClaims(pod) || pod.Status.StartTime == nil {
		r.known.Delete(key)
		return 0, nil
	}
	p := r.of(key, pod.UID)
	wait, due := r.next(p, pod.Spec.NodeName)
	if !due {
		return 0, nil
	}
	if wait > 0 {
		return wait, nil
	}
	// The cache of claims may be behind: what has none of the driver is looked at again.
	concerned := r.concerned(pod)
	if concerned {
		if err := podstate.Touch(ctx, r.Client, pod, r.Clock.Now()); err != nil {
			return 0, fmt.Errorf("have the kubelet of node %s sync pod %s, which has claims and no sandbox: %w",
				pod.Spec.NodeName, klog.KObj(pod), err)
		}
	}
	if now := r.Clock.Now(); p.syncs < len(schedule) && !now.Before(p.first.Add(schedule[p.syncs])) {
		p.syncs++
	}
	p.last = r.Clock.Now()
	if concerned {
		klog.FromContext(ctx).Info("Had the kubelet sync a pod that has claims and no sandbox",
			"pod", klog.KObj(pod), "node", pod.Spec.NodeName, "after", p.last.Sub(p.first), "sync", p.syncs)
	}
	wait, _ = r.next(p, pod.Spec.NodeName)
	return wait, nil
}

// of is what is known of a pod; it begins now for one that has the name of another.
func (r *reconciler) of(key string, uid types.UID) *starting {
	known, _ := r.known.Load(key)
	p, is := known.(*starting)
	if !is || p.uid != uid {
		p = &starting{uid: uid, first: r.Clock.Now()}
		r.known.Store(key, p)
	}
	return p
}

// next is in how long a pod's next sync is due; false where there is none.
func (r *reconciler) next(p *starting, node string) (time.Duration, bool) {
	at, _ := r.returned.Load(node)
	returned, _ := at.(time.Time)
	var due time.Time
	if p.syncs < len(schedule) {
		due = p.first.Add(schedule[p.syncs])
	}
	if returned.After(p.first) && returned.After(p.last) && (due.IsZero() || returned.Before(due)) {
		due = returned
	}
	if due.IsZero() {
		return 0, false
	}
	if earliest := p.last.Add(apart); !p.last.IsZero() && due.Before(earliest) {
		due = earliest
	}
	return due.Sub(r.Clock.Now()), true
}

// concerned reports whether a claim of the pod was allocated GPUs of the driver.
func (r *reconciler) concerned(pod *corev1.Pod) bool {
	for name := range resourceclaim.PodClaims(pod) {
		if claim, exists := r.claims.Get(pod.Namespace + "/" + name); exists && gpuclaim.AllocatedFrom(claim) != "" {
			return true
		}
	}
	return false
}
