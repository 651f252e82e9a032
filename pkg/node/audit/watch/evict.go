// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/audit"
	"github.com/gpushare/dra-driver-gpushare/pkg/report"
)

const (
	// evictLimit is how long an eviction may take: the next reading waits for it.
	evictLimit = 5 * time.Second
	// evictSoon is how soon an eviction is tried again that was refused; that doubles up to
	// evictSeldom.
	evictSoon, evictSeldom = 10 * time.Second, 5 * time.Minute
)

// attempt is what became of the eviction of a pod.
type attempt struct {
	done     bool
	failures int
	after    time.Time
}

// evict evicts the pods that are due, each once.
func (w *Watch) evict(ctx context.Context, now time.Time) {
	for _, pod := range w.tracker.Due(now, w.Eviction.Kinds, w.Eviction.After) {
		a := w.evicted[pod.UID]
		if a == nil {
			a = &attempt{}
			w.evicted[pod.UID] = a
		}
		if a.done || now.Before(a.after) {
			continue
		}
		if err := w.evictPod(ctx, pod); err != nil {
			klog.FromContext(ctx).Error(err, "A pod could not be evicted, will try again", "pod",
				klog.KRef(pod.Namespace, pod.Name), "failures", a.failures)
			w.Events.Warn(reference(pod), v1alpha1.ReasonNotEvicted, err.Error())
			a.after = now.Add(min(evictSoon<<min(a.failures, 10), evictSeldom))
			a.failures++
			continue
		}
		a.done = true
		w.Events.Clear(pod.UID, v1alpha1.ReasonNotEvicted)
	}
}

// evictPod evicts the pod of that UID, and no other of that name.
func (w *Watch) evictPod(ctx context.Context, pod audit.Pod) error {
	ctx, cancel := context.WithTimeout(ctx, evictLimit)
	defer cancel()
	pods, this := w.Client.CoreV1().Pods(pod.Namespace), metav1.DeleteOptions{
		Preconditions: &metav1.Preconditions{UID: &pod.UID}}
	asked, done := context.WithTimeout(ctx, evictLimit/2)
	defer done()
	err := pods.EvictV1(asked, &policyv1.Eviction{
		ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name}, DeleteOptions: &this,
	})
	if w.Eviction.OverBudgets && byBudget(err) {
		err = pods.Delete(ctx, pod.Name, this)
	}
	switch {
	case apierrors.IsNotFound(err), apierrors.IsConflict(err):
		return nil // it is gone
	case apierrors.IsTooManyRequests(err):
		return fmt.Errorf("the pod is not evicted for its use of GPUs now, for a PodDisruptionBudget keeps it: %w", err)
	case apierrors.IsForbidden(err):
		return fmt.Errorf("the pod is not evicted for its use of GPUs: %w: apply deployments/options/audit-evicts, or leave "+
			"AUDIT_EVICT empty", err)
	case err != nil:
		return fmt.Errorf("evict the pod for its use of GPUs: %w", err)
	}
	klog.FromContext(ctx).Info("Evicted a pod for its use of GPUs", "pod", klog.KRef(pod.Namespace, pod.Name))
	w.Events.Warn(reference(pod), v1alpha1.ReasonEvicted,
		fmt.Sprintf("The pod was evicted, for what its other Events say "+
			"of its use of GPUs has lasted for %s", w.Eviction.After))
	return nil
}

// byBudget reports whether PodDisruptionBudgets keep a pod from being evicted: one, several, or one
// that changes all the time, for which client-go waits.
func byBudget(err error) bool {
	return apierrors.IsTooManyRequests(err) || errors.Is(err, context.DeadlineExceeded) ||
		apierrors.IsInternalError(err) && strings.Contains(err.Error(), "PodDisruptionBudget")
}

// forgetEvicted drops the pods of which nothing is found any more.
func (w *Watch) forgetEvicted(holding []audit.Finding) {
	found := map[types.UID]bool{}
	for _, f := range holding {
		found[f.Pod.UID] = true
	}
	for uid := range w.evicted {
		if !found[uid] {
			delete(w.evicted, uid)
			w.Events.Clear(uid, v1alpha1.ReasonNotEvicted)
			w.Events.Clear(uid, v1alpha1.ReasonEvicted)
		}
	}
}

func reference(pod audit.Pod) corev1.ObjectReference {
	return report.Pod(pod.Namespace, pod.Name, pod.UID)
}
