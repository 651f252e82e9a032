// SPDX-License-Identifier: Apache-2.0

// Package preempt evicts pods of lower priority for a pod that waits for devices, which the
// scheduler of Kubernetes does not do: option.go finds with the scheduler's allocator without
// whom the pod would fit on a node, choose.go the least of them, plan.go the node. These
// decide by what they are given. preempt.go looks at the cluster and at one waiting pod after
// the other, act.go evicts. It is a part of pkg/controller/waiting, which knows for whom it may
// help that others go.
//
// Nothing is recorded but since when pods terminate: what leaves a node counts as gone, and who
// has room, or is about to have, costs no victims. So a new leader goes on where the last one
// stopped.
package preempt

import (
	"context"
	"errors"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	typedresourcev1 "k8s.io/client-go/kubernetes/typed/resource/v1"
	typedschedulingv1beta1 "k8s.io/client-go/kubernetes/typed/scheduling/v1beta1"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"github.com/gpushare/dra-driver-gpushare/internal/backoff"
	"github.com/gpushare/dra-driver-gpushare/internal/seen"
	"github.com/gpushare/dra-driver-gpushare/pkg/controller/cache"
	"github.com/gpushare/dra-driver-gpushare/pkg/controller/podstate"
	"github.com/gpushare/dra-driver-gpushare/pkg/report"
	"github.com/gpushare/dra-driver-gpushare/pkg/scheduling"
)

const (
	// interval is how often pods that wait have a round, while there are any.
	interval = 2 * time.Second
	// steady is how long the decision has to hold: most of what changes in a cluster does so in moments.
	steady = 3 * time.Second
	// lookedMost is at how many pods is looked at one time, nodesMost on how many nodes pods
	// are evicted at the same time, ofNamespaceMost on how many for those of one namespace.
	lookedMost      = 20
	nodesMost       = 10
	ofNamespaceMost = nodesMost / 2
	// roundMost is for how long it is looked at one time, half of it for those that have been due
	// for longest.
	roundMost = time.Second
	// planningMost is for how long it is looked for victims for one pod, after shorter times that
	// were not enough. A thousand nodes full of shares take seconds on a busy machine (BenchmarkPlan);
	// what was found until then is of no use: the next node may have room.
	planningMost = 10 * time.Second
	// effortMost is the effort, in nodes, of looking for victims for one pod.
	effortMost = 50
)

// missed is when a pod is looked at again that finds no victims.
var missed = backoff.Doubling{Least: interval, Most: 30 * time.Second}

// Config is what the controller works with.
type Config struct {
	// Cache is asked for live pods, the cluster, PodDisruptionBudgets and namespaces.
	Cache *cache.Reader

	Client   Client
	ClaimsOf typedresourcev1.ResourceClaimsGetter
	Rules    typedresourcev1.DeviceTaintRulesGetter
	Groups   typedschedulingv1beta1.PodGroupsGetter
	// Engine finds without whom pods fit.
	Engine *scheduling.Engine
	Events *report.Reporter
	Clock  clock.PassiveClock
	// Waits are the pods that wait for devices that others have, by UID, as far as that is known.
	Waits func() map[types.UID]*Wait
}

// Client evicts pods, and reads them and their volumes.
type Client interface {
	typedcorev1.PodsGetter
	typedcorev1.PersistentVolumeClaimsGetter
	typedcorev1.PersistentVolumesGetter
}

// Preemptor has pods evicted.
type Preemptor struct {
	Config
	pods       cache.Live
	caches     cache.Cluster
	budgets    *cache.Objects[*policyv1.PodDisruptionBudget]
	namespaces *cache.Objects[*metav1.PartialObjectMetadata]

	endings *seen.Since[ending]
	// next, and all that follows, is Round's: when the next one may be. evictions are by node.
	next      time.Time
	evictions map[string]*eviction
	failures  failures
	refused   podstate.RefusedPods
}

// New makes a Preemptor. wake is called when there may be something to do.
func New(cfg Config, wake func()) *Preemptor {
	c := cfg.Cache
	p := &Preemptor{
		Config: cfg, pods: c.LivePods(), caches: c.Cluster(), budgets: c.Budgets(), namespaces: c.Namespaces(),
		evictions: map[string]*eviction{},
		failures:  failures{}, refused: podstate.RefusedPods{}, endings: seen.NewSince[ending](cfg.Clock),
	}
	p.pods.On(cache.Handler[*corev1.Pod]{
		Seen: p.sawEnding,
		Changed: func(before, after *corev1.Pod) {
			p.sawEnding(after)
			if !before.DeletionTimestamp.Equal(after.DeletionTimestamp) {
				p.forgetEnding(before)
			}
		},
		Gone: func(pod *corev1.Pod) {
			p.forgetEnding(pod)
			cfg.Events.Forget(pod.UID)
		},
	})
	p.namespaces.On(cache.Handler[*metav1.PartialObjectMetadata]{Seen: func(*metav1.PartialObjectMetadata) { wake() }})
	return p
}

func (p *Preemptor) sawEnding(pod *corev1.Pod) {
	if pod.DeletionTimestamp != nil {
		p.endings.For(endingOf(pod))
	}
}

func (p *Preemptor) forgetEnding(pod *corev1.Pod) {
	if pod.DeletionTimestamp != nil {
		p.endings.Forget(endingOf(pod))
	}
}

// Round looks at pods that wait, and returns when it is to be called again; zero for when there is something to do.
// One goroutine at a time may call it.
func (p *Preemptor) Round(ctx context.Context) (time.Duration, error) {
	now := p.Clock.Now()
	if wait := p.next.Sub(now); wait > 0 {
		return wait, nil
	}
	p.next = now.Add(interval)
	if !p.Cache.Synced() {
		return interval, nil
	}
	pods, waits := p.pods.List(), p.Waits()
	there := podstate.ByUID(pods)
	p.finish(ctx, there, now)
	p.failures.forget(now)
	p.refused.Forget(now, there)
	waiting := slices.DeleteFunc(slices.Clone(pods), func(pod *corev1.Pod) bool {
		return waits[pod.UID] == nil || !preempts(pod) || !p.takesPart(pod.Namespace)
	})
	if len(waiting)+len(p.evictions) == 0 {
		return 0, nil
	}
	slices.SortFunc(waiting, scheduling.QueueOrder)
	due := p.due(waiting, waits, now)
	if len(due) == 0 {
		return interval, nil
	}
	s, err := p.look(ctx, pods, now)
	if err != nil {
		return 0, err
	}
	for _, half := range turns(due, func(pod *corev1.Pod) time.Time { return waits[pod.UID].after }, lookedMost) {
		began := p.Clock.Now()
		for i, pod := range half {
			if i > 0 && p.Clock.Since(began) > roundMost/2 {
				break
			}
			w := waits[pod.UID]
			if err := p.consider(ctx, s, pod, w); err != nil {
				// The others do not wait for it.
				klog.FromContext(ctx).Error(err, "Will try again", "pod", klog.KObj(pod))
				w.miss(now)
			}
		}
	}
	return interval, nil
}

// consider evicts others for a pod if that helps it.
func (p *Preemptor) consider(ctx context.Context, s *situation, cached *corev1.Pod, w *Wait) error {
	s.without(p.evictions)
	pod, err := podstate.Current(ctx, p.Client, cached.Namespace, cached.Name, cached.UID)
	if pod == nil || err != nil || !preempts(pod) {
		return err
	}
	wished, err := p.wish(ctx, pod)
	if err != nil {
		return err
	}
	var o *option
	why := "it has no claims that wait to be allocated, or others beside them"
	switch {
	case p.evicting(func(e *eviction) bool {
		return slices.ContainsFunc(e.claims, func(uid types.UID) bool { return slices.Contains(wished.uids(), uid) })
	}) > 0:
		why = "others are evicted for a pod that waits for the same claim"
	case len(wished.claims) > 0:
		o, why, err = s.planWithin(ctx, w.timeToPlan(), wished)
		switch {
		case errors.Is(err, errPlanning):
			w.tookTooLong()
			why = err.Error()
		case err != nil:
			return err
		}
	}
	switch {
	case o == nil:
		klog.FromContext(ctx).V(4).Info("No pod is evicted for a pod that waits", "pod", klog.KObj(pod), "reason", why)
		w.miss(s.now)
	case len(p.evictions) >= nodesMost ||
		p.evicting(func(e *eviction) bool { return e.object.Namespace == pod.Namespace }) >= ofNamespaceMost:
		w.miss(s.now)
	case w.plan != o.key():
		w.plan, w.after = o.key(), s.now.Add(steady)
	default:
		w.plan = ""
		return p.evict(ctx, pod, wished.uids(), o, w, s.now)
	}
	return nil
}

// wish is what a pod waits for; without claims where that is not known in full.
func (p *Preemptor) wish(ctx context.Context, pod *corev1.Pod) (wish, error) {
	classOf := scheduling.ClassOf(p.caches.Classes.List())
	w := wish{
		pod: pod, requests: scheduling.RequestsOf(pod),
		byClass: func(name corev1.ResourceName) bool { return classOf(name) != nil },
	}
	claims, there, err := podstate.Claims(ctx, p.ClaimsOf, pod)
	if err != nil || !there || pod.Status.ExtendedResourceClaimStatus != nil {
		return w, err
	}
	for _, claim := range claims {
		if claim.Status.Allocation != nil {
			// It has to go where that is, and others hold it.
			return w, nil
		}
	}
	if own := scheduling.ClaimForExtended(pod, classOf); own != nil {
		claims = append(claims, own)
	}
	w.claims = claims
	w.where, err = p.where(ctx, pod)
	return w, err
}
