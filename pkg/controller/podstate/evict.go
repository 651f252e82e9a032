// SPDX-License-Identifier: Apache-2.0

package podstate

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/klog/v2"
)

// evictionMost is how long the API server may take for one eviction: client-go asks again
// and again, as long as the server says, where a budget keeps a pod.
const evictionMost = 3 * time.Second

// Evict evicts a pod, and no other of that name, with the grace that it has, or so many seconds.
func Evict(ctx context.Context, client typedcorev1.PodsGetter, pod *corev1.Pod, grace *int64, dryRun ...string) error {
	ctx, cancel := context.WithTimeout(ctx, evictionMost)
	defer cancel()
	return client.Pods(pod.Namespace).EvictV1(ctx, &policyv1.Eviction{
		ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name},
		DeleteOptions: &metav1.DeleteOptions{
			Preconditions: &metav1.Preconditions{UID: &pod.UID}, DryRun: dryRun, GracePeriodSeconds: grace,
		},
	})
}

// Refused reports whether the API server refused an eviction by a decision that stands, a webhook's, a policy's or that
// of the permissions, and not for what passes: a budget, a pod that is gone or another one, or an answer that is late.
func Refused(err error) bool {
	var status apierrors.APIStatus
	if !errors.As(err, &status) {
		return false
	}
	switch code := status.Status().Code; code {
	case http.StatusNotFound, http.StatusConflict, http.StatusTooManyRequests, http.StatusRequestTimeout:
		return false
	default:
		return code >= 400 && code < 500
	}
}

// RefusedFor is for how long a pod stays after the cluster decided that it is not to be evicted: who decides about it
// may change their mind.
const RefusedFor = 5 * time.Minute

// RefusedPods are those that the cluster did not let be evicted, until when they stay.
type RefusedPods map[types.UID]time.Time

// Try asks the API server, in dry runs, whether it would evict the pods with the grace that each is given, and
// remembers those that it refused to evict. The error is Refused if it refused nothing but these; otherwise it says
// what keeps another pod.
func (r RefusedPods) Try(ctx context.Context, client typedcorev1.PodsGetter, pods []*corev1.Pod,
	grace func(*corev1.Pod) *int64, now time.Time) error {
	var refused error
	for _, pod := range pods {
		err := Evict(ctx, client, pod, grace(pod), metav1.DryRunAll)
		if err == nil {
			continue
		}
		err = fmt.Errorf("try whether pod %s may be evicted: %w", klog.KObj(pod), err)
		if !Refused(err) {
			return err
		}
		r[pod.UID], refused = now.Add(RefusedFor), err
	}
	return refused
}

// Forget forgets the pods whose time is over, and those that are gone.
func (r RefusedPods) Forget(now time.Time, there map[types.UID]*corev1.Pod) {
	maps.DeleteFunc(r, func(uid types.UID, until time.Time) bool { return !now.Before(until) || there[uid] == nil })
}
