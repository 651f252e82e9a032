// SPDX-License-Identifier: Apache-2.0

package waiting

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/metadata"
	"k8s.io/utils/clock"

	"github.com/gpushare/dra-driver-gpushare/internal/procs"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/controller/cache"
	"github.com/gpushare/dra-driver-gpushare/pkg/controller/manager"
	"github.com/gpushare/dra-driver-gpushare/pkg/controller/podstate"
	"github.com/gpushare/dra-driver-gpushare/pkg/controller/waiting/preempt"
	"github.com/gpushare/dra-driver-gpushare/pkg/placement"
	"github.com/gpushare/dra-driver-gpushare/pkg/report"
	"github.com/gpushare/dra-driver-gpushare/pkg/scheduling"
)

const (
	// RepeatAfter is after how long a pod that still waits is told again, and looked
	// at again though nothing seems to have changed.
	RepeatAfter = 5 * time.Minute
	// refusedPods is the key under which all pods that the scheduler refused are looked at again. No pod has it.
	refusedPods = "* refused"
	// offersSettle is how long what the nodes offer may change before that: a rollout of the plugin changes each node in
	// turn.
	offersSettle = 10 * time.Second
	// preemptions is the key of Preemptor.Round. No pod has it: who is evicted is decided over the whole cluster, in the
	// order of the scheduler's queue.
	preemptions = "* preemptions"
)

// Config is what the controller needs.
type Config struct {
	// Cache is asked for pods without a node, and the cluster; where nodes are nominated, also for live pods.
	Cache *cache.Reader
	// Client reads claims, and the rules by which administrators taint devices.
	Client Client
	// Engine finds what is free.
	Engine *scheduling.Engine
	// Events should repeat after RepeatAfter.
	Events *report.Reporter
	Clock  clock.PassiveClock
	// Nominations says how nodes are nominated; nil where none are.
	Nominations *Nominations
	// Gates is by whom gates of the option best-node-gate are opened where no nodes are nominated: the option may be
	// there before the setting BEST_NODE, and after it.
	Gates metadata.Interface
	// Preemptions says how pods are evicted for others; nil where none are. Its Waits are the Reconciler's. Its Cache is
	// another than that above: a permission that is missing for this alone keeps nothing else from working.
	Preemptions *preempt.Config
	// Busy is told when a pod is explained, or it is decided who is evicted, and done when that has ended; nil for
	// nobody.
	Busy procs.Busy
}

// Reconciler looks at pods that wait for GPUs.
type Reconciler struct {
	Config
	work      *manager.Controller
	pods      cache.Unscheduled
	nominator *Nominator
	preemptor *preempt.Preemptor

	// settled counts how often all pods were to be looked at again.
	settled atomic.Int64
	// mu is for memories, which are by the pods' keys. The worker that has a key uses its memory.
	mu       sync.Mutex
	memories map[string]*memory
	// explaining has one pod explained at a time.
	explaining sync.Mutex
	explainer  *explainer
	budget     *report.Budget
}

// New makes a Reconciler.
func New(cfg Config) *Reconciler {
	c := cfg.Cache
	r := &Reconciler{Config: cfg, pods: c.UnscheduledPods(), memories: map[string]*memory{}, explainer: newExplainer(cfg),
		budget: report.NewBudget(RepeatAfter)}
	r.work = manager.NewController("waiting", r.sync)
	if cfg.Nominations != nil {
		r.nominator = newNominator(cfg, r.work)
	}
	if cfg.Preemptions != nil {
		preemptions := *cfg.Preemptions
		preemptions.Waits = r.waits
		r.preemptor = preempt.New(preemptions, r.preempt)
	}
	forget := func(pod *corev1.Pod) { r.Events.Forget(pod.UID) }
	r.pods.On(cache.Handler[*corev1.Pod]{Gone: forget, Seen: func(pod *corev1.Pod) {
		if _, refused := podstate.Unschedulable(pod); refused || r.nominator == nil && placement.AtGate(pod) {
			r.work.Enqueue(cache.Key(pod))
		} else if cache.UnseenBy(pod) != "" {
			r.work.EnqueueAfter(cache.Key(pod), unseenAfter)
		}
	}})
	c.StartingPods().On(cache.Handler[*corev1.Pod]{Gone: forget, Seen: r.tellStatic})
	r.explainer.watch(func() { r.work.EnqueueAfter(refusedPods, offersSettle) })
	return r
}

// Controller is what is to be run. It can have several workers.
func (r *Reconciler) Controller() *manager.Controller { return r.work }

// Nominator returns what nominates nodes, nil if nothing does.
func (r *Reconciler) Nominator() *Nominator { return r.nominator }

// sync is a manager.Reconcile; the key is that of a pod, or one of all.
func (r *Reconciler) sync(ctx context.Context, key string) (time.Duration, error) {
	switch key {
	case refusedPods:
		r.lookAtRefused()
		return 0, nil
	case everyPod:
		return 0, r.nominator.lookAtAll(ctx)
	case preemptions:
		defer r.Busy.Begin()()
		return r.preemptor.Round(ctx)
	}
	var nominated time.Duration
	var failed error
	if r.nominator != nil {
		nominated, failed = r.nominator.sync(ctx, key)
	} else if pod, waits := r.pods.Get(key); waits && placement.AtGate(pod) {
		nominated, failed = r.release(ctx, pod)
	}
	told, err := r.tell(ctx, key)
	return manager.Earlier(nominated, told), errors.Join(failed, err)
}

// lookAtRefused has all pods looked at again that the scheduler refused.
func (r *Reconciler) lookAtRefused() {
	r.settled.Add(1)
	for _, pod := range r.pods.List() {
		if _, refused := podstate.Unschedulable(pod); refused {
			r.work.Enqueue(cache.Key(pod))
		}
	}
}

// memoryOf returns what is remembered of a pod. As long as there is something, sync is called for the pod.
func (r *Reconciler) memoryOf(key string, pod *corev1.Pod) *memory {
	r.mu.Lock()
	defer r.mu.Unlock()
	m := r.memories[key]
	if m == nil || m.uid != pod.UID {
		m = &memory{uid: pod.UID, settled: r.settled.Load()}
		r.memories[key] = m
	}
	return m
}

func (r *Reconciler) forget(key string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.memories, key)
}

// preempt has others evicted for pods that this may help.
func (r *Reconciler) preempt() { r.work.Enqueue(preemptions) }

// waits returns what is remembered of the pods that this may help, by UID.
func (r *Reconciler) waits() map[types.UID]*preempt.Wait {
	r.mu.Lock()
	defer r.mu.Unlock()
	waits := map[types.UID]*preempt.Wait{}
	for _, m := range r.memories {
		if m.othersHold {
			waits[m.uid] = &m.preemption
		}
	}
	return waits
}

// note notes what a look has found, and has others evicted where that may help the pod.
func (r *Reconciler) note(l *look, due time.Time) {
	r.mu.Lock()
	l.due, l.memory.othersHold = due, l.othersHold()
	r.mu.Unlock()
	if r.preemptor != nil && l.othersHold() {
		r.preempt()
	}
}

// refused returns a pod that waits because the scheduler found no node for it, and what the scheduler said. A pod that
// waits for another reason is returned, too.
func (r *Reconciler) refused(key string) (pod *corev1.Pod, said string, is bool) {
	if pod, is = r.pods.Get(key); is {
		said, is = podstate.Unschedulable(pod)
	}
	return pod, said, is
}

// tell tells a pod that the scheduler refused, or has not looked at, why it waits, and returns when it is to be looked
// at again.
func (r *Reconciler) tell(ctx context.Context, key string) (time.Duration, error) {
	pod, said, is := r.refused(key)
	if !is {
		r.forget(key)
		return r.tellUnseen(pod)
	}
	m, now := r.memoryOf(key, pod), r.Clock.Now()
	if wait := m.wait(pod, r.settled.Load(), now); wait > 0 {
		return wait, nil
	}
	// Nominations do not wait for what takes long: the other workers are theirs.
	if !r.explaining.TryLock() {
		return lookMost, nil
	}
	defer r.explaining.Unlock()
	defer r.Busy.Begin()()
	l := &look{pod: pod, said: said, told: r.Events.Told(pod.UID, v1alpha1.ReasonClaimWaiting), memory: m}
	a, err := r.explainer.answer(ctx, l)
	if current, _, is := r.refused(key); !is || current.UID != pod.UID {
		r.forget(key)
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	r.note(l, now.Add(a.again))
	switch {
	case a.stays:
	case a.text == "":
		r.Events.Clear(pod.UID, v1alpha1.ReasonClaimWaiting)
	case r.budget.Take(pod.Namespace, pod.UID, now):
		r.Events.WarnOf(report.Pod(pod.Namespace, pod.Name, pod.UID), v1alpha1.ReasonClaimWaiting, a.about, a.text)
	}
	return a.again, nil
}
