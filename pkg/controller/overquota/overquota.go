// SPDX-License-Identifier: Apache-2.0

// Package overquota tells pods that a ResourceQuota keeps their claims from being created, and
// has these created when the quota leaves room again.
//
// kube-controller-manager creates the claims of templates. It tries again and again where a
// quota refuses one, after a time that doubles up to 17 minutes, and nothing wakes it when
// others end. It does look at a pod that changes: so an annotation of the pod is changed
// when there is room for its claims.
package overquota

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	typedresourcev1 "k8s.io/client-go/kubernetes/typed/resource/v1"
	"k8s.io/client-go/metadata"
	"k8s.io/utils/clock"

	"github.com/gpushare/dra-driver-gpushare/internal/backoff"
	"github.com/gpushare/dra-driver-gpushare/internal/seen"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/controller/cache"
	"github.com/gpushare/dra-driver-gpushare/pkg/controller/manager"
	"github.com/gpushare/dra-driver-gpushare/pkg/controller/podstate"
	"github.com/gpushare/dra-driver-gpushare/pkg/quota"
	"github.com/gpushare/dra-driver-gpushare/pkg/report"
)

const (
	// patience is how long a pod may wait for its claims before a quota is looked for: most
	// are created within moments.
	patience = 3 * time.Second
	// lookAgain is how often the quotas are looked at while pods wait that one keeps from
	// running, lookElsewhere while it is something else that they wait for.
	lookAgain     = 5 * time.Second
	lookElsewhere = time.Minute
	// mostTouched bounds how many pods of a namespace are changed at once.
	mostTouched = 50
	// mostInVain is how often a pod is changed before it is taken to wait for something else, and keeps no room from
	// the younger ones.
	mostInVain = 3
)

// apart is how long there is between two changes of a pod: what it waits for may be something
// else.
var apart = backoff.Doubling{Least: 10 * time.Second, Most: 160 * time.Second}

// RepeatAfter is after how long a pod that still waits is told again, with the numbers of
// then.
const RepeatAfter = 5 * time.Minute

// Config is what the controller needs.
type Config struct {
	// Cache is asked for the pods without a node.
	Cache *cache.Reader
	// Quotas, Templates and Claims are asked for what pods wait for, while some do.
	Quotas    typedcorev1.ResourceQuotasGetter
	Templates typedresourcev1.ResourceClaimTemplatesGetter
	Claims    typedresourcev1.ResourceClaimsGetter
	// Changes writes the pods' annotations.
	Changes metadata.Interface
	// Events should repeat after RepeatAfter.
	Events *report.Reporter
	Clock  clock.PassiveClock
}

type reconciler struct {
	Config
	pods cache.Unscheduled
	// waits is for how long pods have been seen without their claims, by UID.
	waits *seen.Since[types.UID]

	mu sync.Mutex
	// known are pods without claims, by UID.
	known  map[types.UID]*known
	budget *report.Budget
}

// known is when a pod was told last, and when it may be changed again.
type known struct {
	told, next time.Time
	// changes is how often it was changed since a quota kept its claims from being created.
	changes int
	// short says that a quota has kept its claims from being created.
	short bool
}

// New returns the controller. Its keys are namespaces; it can have several workers.
func New(cfg Config) *manager.Controller {
	r := &reconciler{Config: cfg, pods: cfg.Cache.UnscheduledPods(), waits: seen.NewSince[types.UID](cfg.Clock),
		known: map[types.UID]*known{}, budget: report.NewBudget(RepeatAfter)}
	work := manager.NewController("overquota", r.reconcile)
	r.pods.On(cache.Handler[*corev1.Pod]{
		Seen: func(pod *corev1.Pod) {
			if len(podstate.UnmadeClaims(pod)) > 0 {
				r.waits.For(pod.UID)
				work.EnqueueAfter(pod.Namespace, patience)
			} else {
				r.forget(pod.UID)
			}
		},
		Gone: func(pod *corev1.Pod) { r.forget(pod.UID) },
	})
	return work
}

// reconcile is a manager.Reconcile; the key is a namespace.
func (r *reconciler) reconcile(ctx context.Context, namespace string) (time.Duration, error) {
	pods, younger := r.waiting(namespace)
	if len(pods) == 0 {
		if younger == 0 {
			return 0, nil
		}
		return patience, nil
	}
	quotas, err := r.Quotas.ResourceQuotas(namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return 0, fmt.Errorf("look whether a ResourceQuota keeps claims of namespace %s from being created: %w", namespace,
			err)
	}
	room := quota.NewRoom(quotas.Items)
	if !room.Any() {
		// They wait for a quota that is gone.
		pods = r.keptByAQuota(pods)
	}
	if len(pods) == 0 {
		return lookElsewhere, nil
	}
	l, touched := &look{reconciler: r, namespace: namespace, amounts: room.Amounts(),
		templates: map[string]*resourceapi.ResourceClaimSpec{}}, 0
	for _, pod := range pods {
		from := room
		if r.inVain(pod.UID) {
			// It takes nothing from the others.
			from = quota.NewRoom(quotas.Items)
		}
		short, there, err := l.take(ctx, pod, from)
		if err != nil {
			return 0, err
		}
		if !there {
			continue
		}
		if short != "" {
			r.tell(pod, short)
			continue
		}
		r.Events.Clear(pod.UID, v1alpha1.ReasonQuotaExceeded)
		if touched < mostTouched && r.due(pod.UID) {
			touched++
			if _, err := podstate.HaveClaimsMade(ctx, r.Changes, pod, r.Clock.Now(), "quotas have room for them"); err != nil {
				return 0, err
			}
		}
	}
	return lookAgain, nil
}

// keptByAQuota are those of the pods of which a quota has kept the claims from being created.
func (r *reconciler) keptByAQuota(pods []*corev1.Pod) []*corev1.Pod {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.DeleteFunc(pods, func(pod *corev1.Pod) bool {
		k := r.known[pod.UID]
		return k == nil || !k.short
	})
}

// waiting are the pods of a namespace that have waited for a while, the oldest first, and how
// many others wait.
func (r *reconciler) waiting(namespace string) (pods []*corev1.Pod, younger int) {
	for _, pod := range r.pods.WithoutClaims(namespace) {
		if r.waits.For(pod.UID) >= patience {
			pods = append(pods, pod)
		} else {
			younger++
		}
	}
	slices.SortFunc(pods, podstate.ByAge)
	return pods, younger
}

// tell tells a pod, and what has changed since not too often, nor too many of a namespace.
func (r *reconciler) tell(pod *corev1.Pod, short string) {
	r.mu.Lock()
	k, now := r.of(pod.UID), r.Clock.Now()
	due := (k.told.IsZero() || now.Sub(k.told) >= RepeatAfter) && r.budget.Take(pod.Namespace, pod.UID, now)
	if due {
		k.told = now
	}
	k.next, k.changes, k.short = time.Time{}, 0, true
	r.mu.Unlock()
	if due {
		r.Events.Warn(report.Pod(pod.Namespace, pod.Name, pod.UID), v1alpha1.ReasonQuotaExceeded,
			"The pod's claim is not created: "+short)
	}
}

// due reports whether a pod is to be changed now, and notes that it is.
func (r *reconciler) due(uid types.UID) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	k, now := r.of(uid), r.Clock.Now()
	if now.Before(k.next) {
		return false
	}
	k.changes++
	k.next = now.Add(apart.After(k.changes))
	return true
}

// inVain reports whether a pod was changed several times since quotas have room for its claims, and has none.
func (r *reconciler) inVain(uid types.UID) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	k := r.known[uid]
	return k != nil && k.changes >= mostInVain
}

// of is what is known of a pod; mu is held.
func (r *reconciler) of(uid types.UID) *known {
	if r.known[uid] == nil {
		r.known[uid] = &known{}
	}
	return r.known[uid]
}

func (r *reconciler) forget(uid types.UID) {
	r.waits.Forget(uid)
	r.mu.Lock()
	delete(r.known, uid)
	r.mu.Unlock()
	r.Events.Forget(uid)
}
