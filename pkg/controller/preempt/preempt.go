// SPDX-License-Identifier: Apache-2.0

// Package preempt evicts pods of lower priority for a pod that waits for devices, which the
// scheduler of Kubernetes does not do: option.go finds with the scheduler's allocator without
// whom the pod would fit on a node, choose.go the least of them, plan.go the node. These
// decide by what they are given. preempt.go looks at the cluster and at one waiting pod after
// the other, act.go evicts.
//
// Nothing is recorded: what leaves a node counts as gone, and who has room, or is about to
// have, costs no victims. So a new leader goes on where the last one stopped.
package preempt

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	typedresourcev1 "k8s.io/client-go/kubernetes/typed/resource/v1"
	typedschedulingv1beta1 "k8s.io/client-go/kubernetes/typed/scheduling/v1beta1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/dynamic-resource-allocation/deviceclass/extendedresourcecache"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"github.com/gpushare/dra-driver-gpushare/pkg/controller/manager"
	"github.com/gpushare/dra-driver-gpushare/pkg/controller/pending"
	"github.com/gpushare/dra-driver-gpushare/pkg/informer"
	"github.com/gpushare/dra-driver-gpushare/pkg/report"
	"github.com/gpushare/dra-driver-gpushare/pkg/scheduling"
)

const (
	// interval is how often it is looked for pods that wait, while there are any.
	interval = 2 * time.Second
	// patience is how long a pod waits before others are evicted for it, and steady how long
	// the decision has to hold: most of what changes in a cluster does so in moments.
	patience = 5 * time.Second
	steady   = 3 * time.Second
	// seldom is how often a pod is looked at that finds no victims, at least.
	seldom = 30 * time.Second
	// lookedMost is at how many pods is looked at one time, flightsMost on how many nodes pods
	// are evicted at the same time, ofNamespaceMost on how many for those of one namespace.
	lookedMost      = 20
	flightsMost     = 10
	ofNamespaceMost = flightsMost / 2
	// roundMost is for how long it is looked at one time, half of it for those that have been due
	// for longest.
	roundMost = time.Second
	// planningMost is for how long it is looked for victims for one pod, after shorter times that
	// were not enough. A thousand nodes full of shares take seconds on a busy machine (BenchmarkPlan);
	// what was found until then is of no use: the next node may have room.
	planningMost = 10 * time.Second
	// compiledMost is how many compiled CEL expressions are kept.
	compiledMost = 100
	// everything is the only key of the controller.
	everything = "*"
)

// Config is what the controller works with.
type Config struct {
	// Pods holds the pods that Selector selects, through Slim, Nodes all nodes (SlimNode),
	// Budgets all PodDisruptionBudgets, Slices the driver's ResourceSlices (*view.Slice), Claims
	// those of all pods (informer.SlimClaim), Classes the DeviceClasses, Namespaces the metadata of
	// all (*metav1.PartialObjectMetadata). New adds handlers and indexes; they must not run yet.
	Pods, Nodes, Budgets, Slices, Claims, Classes, Namespaces cache.SharedIndexInformer

	Client   typedcorev1.PodsGetter
	ClaimsOf typedresourcev1.ResourceClaimsGetter
	Rules    typedresourcev1.DeviceTaintRulesGetter
	Groups   typedschedulingv1beta1.PodGroupsGetter
	Events   *report.Reporter
	Clock    clock.PassiveClock
}

type preemptor struct {
	Config
	work   *manager.Controller
	engine *scheduling.Engine
	// What follows is the reconciler's. flights are by node.
	waits    map[types.UID]*wait
	flights  map[string]*flight
	failures failures
	refused  refusedPods
}

// SlimNode is a transform for an informer of nodes: it leaves what this package reads.
func SlimNode(object any) (any, error) {
	n, ok := object.(*corev1.Node)
	if !ok {
		return object, nil
	}
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: n.Name, UID: n.UID, ResourceVersion: n.ResourceVersion, Labels: n.Labels},
		Spec:       corev1.NodeSpec{Taints: n.Spec.Taints, Unschedulable: n.Spec.Unschedulable},
		Status:     corev1.NodeStatus{Allocatable: n.Status.Allocatable},
	}, nil
}

// New makes the controller. It is to be run with one worker.
func New(cfg Config) (*manager.Controller, error) {
	p := &preemptor{
		Config: cfg, waits: map[types.UID]*wait{}, flights: map[string]*flight{}, failures: failures{},
		refused: refusedPods{}, engine: scheduling.NewEngine(compiledMost),
	}
	p.work = manager.NewController("preempt", p.round)
	if err := informer.IndexClaims(cfg.Claims); err != nil {
		return nil, err
	}
	if err := informer.IndexSlices(cfg.Slices); err != nil {
		return nil, err
	}
	saw := func(object any) {
		if pod, ok := object.(*corev1.Pod); ok && waitsForDevices(pod) {
			p.work.EnqueueAfter(everything, interval)
		}
	}
	if _, err := cfg.Pods.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: saw, UpdateFunc: func(_, object any) { saw(object) },
		DeleteFunc: func(object any) {
			if pod, ok := informer.Object(object).(*corev1.Pod); ok {
				cfg.Events.Forget(pod.UID)
			}
		},
	}); err != nil {
		return nil, fmt.Errorf("watch the pods: %w", err)
	}
	look := func(any) { p.work.EnqueueAfter(everything, interval) }
	if _, err := cfg.Namespaces.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: look, UpdateFunc: func(_, object any) { look(object) },
	}); err != nil {
		return nil, fmt.Errorf("watch the namespaces: %w", err)
	}
	return p.work, nil
}

// round is a manager.Reconcile. It looks at pods that wait.
func (p *preemptor) round(ctx context.Context, _ string) (time.Duration, error) {
	now := p.Clock.Now()
	pods := informer.List[*corev1.Pod](p.Pods)
	p.land(ctx, pods, now)
	waiting := slices.DeleteFunc(slices.Clone(pods), func(pod *corev1.Pod) bool {
		return !waitsForDevices(pod) || !p.takesPart(pod.Namespace)
	})
	p.forget(pods)
	if len(waiting)+len(p.flights) == 0 {
		return 0, nil
	}
	inQueueOrder(waiting)
	due := p.due(waiting, now)
	if len(due) == 0 {
		return interval, nil
	}
	s, err := p.look(ctx, pods, now)
	if err != nil {
		return 0, err
	}
	for _, half := range turns(due, func(pod *corev1.Pod) time.Time { return p.waits[pod.UID].after }, lookedMost) {
		began := p.Clock.Now()
		for i, pod := range half {
			if i > 0 && p.Clock.Since(began) > roundMost/2 {
				break
			}
			w := p.waits[pod.UID]
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
func (p *preemptor) consider(ctx context.Context, s *situation, cached *corev1.Pod, w *wait) error {
	s.reserved = map[string]bool{}
	for name := range p.flights {
		s.reserved[name] = true
	}
	pod, err := p.Client.Pods(cached.Namespace).Get(ctx, cached.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("look at pod %s, which waits for devices: %w", klog.KObj(cached), err)
	}
	if pod.UID != cached.UID || !preempts(pod) {
		return nil
	}
	said, _ := pending.Refusal(pod)
	wished, a, err := p.wish(ctx, pod)
	if err != nil {
		return err
	}
	var o *option
	why := "it has no claims that wait to be allocated, or others beside them"
	switch {
	case p.claimInFlight(wished.uids()):
		why = "others are evicted for a pod that waits for the same claim"
	case len(wished.claims) > 0:
		o, why, err = s.planWithin(ctx, w.timeToPlan(), a, wished, said)
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
	case len(p.flights) >= flightsMost || p.flightsOf(pod.Namespace) >= ofNamespaceMost:
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
func (p *preemptor) wish(ctx context.Context, pod *corev1.Pod) (wish, allocating, error) {
	classes := informer.List[*resourceapi.DeviceClass](p.Classes)
	extended := extendedresourcecache.NewExtendedResourceCache(logr.Discard())
	for _, class := range classes {
		extended.OnAdd(class, true)
	}
	w := wish{
		pod: pod, requests: requestsOf(pod),
		byClass: func(name corev1.ResourceName) bool { return extended.GetDeviceClass(name) != nil },
	}
	a := allocating{classes: classes, engine: p.engine}
	claims, there, err := pending.ClaimsOf(ctx, p.ClaimsOf, pod)
	if err != nil || !there || pod.Status.ExtendedResourceClaimStatus != nil {
		return w, a, err
	}
	for _, claim := range claims {
		if claim.Status.Allocation != nil {
			// It has to go where that is, and others hold it.
			return w, a, nil
		}
	}
	if own := scheduling.ClaimForExtended(pod, extended.GetDeviceClass); own != nil {
		claims = append(claims, own)
	}
	w.claims = claims
	return w, a, nil
}
