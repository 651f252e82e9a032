// SPDX-License-Identifier: Apache-2.0

package waiting

import (
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/controller/cache"
	"github.com/gpushare/dra-driver-gpushare/pkg/explain/advice"
	"github.com/gpushare/dra-driver-gpushare/pkg/report"
)

// unseenAfter is for how long the scheduler that a pod names may say nothing of it before the pod is told. Where that
// scheduler does not run, nobody else says a word.
const unseenAfter = time.Minute

// tellUnseen tells a pod that the scheduler that it names has not looked at it, and returns when it is to be looked at
// again. The pod is nil where it is gone.
func (r *Reconciler) tellUnseen(pod *corev1.Pod) (time.Duration, error) {
	if pod == nil || cache.UnseenBy(pod) == "" {
		return 0, nil
	}
	now := r.Clock.Now()
	if wait := unseenAfter - now.Sub(pod.CreationTimestamp.Time); wait > 0 {
		return wait, nil
	}
	if !r.explaining.TryLock() {
		return lookMost, nil
	}
	defer r.explaining.Unlock()
	defer r.Busy.Begin()()
	if err := r.explainer.refresh(); err != nil {
		return 0, err
	}
	a := says("the " + advice.OfSilence(cache.UnseenBy(pod)))
	a.add(". ", r.explainer.advised(pod))
	if r.budget.Take(pod.Namespace, pod.UID, now) {
		r.Events.Warn(report.Pod(pod.Namespace, pod.Name, pod.UID), v1alpha1.ReasonClaimWaiting, a.text)
	}
	return RepeatAfter, nil
}
