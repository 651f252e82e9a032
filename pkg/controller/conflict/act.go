// SPDX-License-Identifier: Apache-2.0

package conflict

import (
	"context"
	"fmt"
	"maps"
	"time"

	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/report"
	"github.com/gpushare/dra-driver-gpushare/pkg/text"
	"github.com/gpushare/dra-driver-gpushare/pkg/usage"
)

// act does something about the pods that have conflicted for long enough, of each
// owner about one at a time: what it owns is not to go all at once. What fails for one
// is logged, and tried again later; the others do not wait for it.
func (k *keeper) act(ctx context.Context, n Node, conflicts []Conflict, pendingPods map[types.UID]*wait) {
	conflicting := map[types.UID]bool{}
	for _, r := range conflicts {
		conflicting[r.Pod.UID] = true
	}
	for uid, w := range pendingPods {
		if !conflicting[uid] {
			w.conflicting, w.told = time.Time{}, false
			k.Events.Clear(uid, v1alpha1.ReasonGPUTaken)
		}
	}
	for _, r := range conflicts {
		w := pendingPods[r.Pod.UID]
		if w == nil {
			continue
		}
		if w.conflicting.IsZero() {
			w.conflicting = k.Clock.Now()
			klog.FromContext(ctx).Info("A pod waits for a GPU that others hold", "pod", klog.KObj(r.Pod), "claim",
				klog.KObj(r.Claim), "heldBy", usage.InUseBy(r.Reason))
		}
		if k.Clock.Since(w.conflicting) < Patience || k.Clock.Now().Before(w.after) {
			continue
		}
		if err := k.actOn(ctx, n, r, w); err != nil {
			w.failures++
			delay := retry.After(w.failures)
			w.after = k.Clock.Now().Add(delay)
			klog.FromContext(ctx).Error(err, "Will try again", "pod", klog.KObj(r.Pod), "failures", w.failures, "after", delay)
			continue
		}
		w.failures = 0
	}
}

// actOn does something about one pod.
func (k *keeper) actOn(ctx context.Context, n Node, r Conflict, w *wait) error {
	r, is, err := k.confirm(ctx, n, r)
	if err != nil || !is {
		return err
	}
	owner := metav1.GetControllerOf(r.Pod)
	advice, err := k.advice(ctx, r, owner)
	switch {
	case err != nil:
		k.tell(r, fmt.Sprintf("It was not evicted: %v. To have another GPU allocated, delete the pod: %s %s makes another.",
			err, owner.Kind, owner.Name))
		return err
	case advice != "":
		k.tell(r, advice)
		w.told = true
		return nil
	case !k.turnOf(owner):
		return nil
	}
	return k.evict(ctx, r, owner)
}

// turnOf says whether a pod of the owner may be evicted now, and remembers that one is.
func (k *keeper) turnOf(owner *metav1.OwnerReference) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	now := k.Clock.Now()
	maps.DeleteFunc(k.evicted, func(_ types.UID, at time.Time) bool { return now.Sub(at) >= interval })
	if _, is := k.evicted[owner.UID]; is {
		return false
	}
	k.evicted[owner.UID] = now
	return true
}

// advice is what to tell the pod's owner to do; empty where the pod can be evicted.
func (k *keeper) advice(ctx context.Context, r Conflict, owner *metav1.OwnerReference) (string, error) {
	switch {
	case !r.Own:
		return fmt.Sprintf("ResourceClaim %s is not this pod's own and keeps its GPU while pods use it: to have another "+
			"GPU allocated, delete all pods that use it.", r.Claim.Name), nil
	case owner == nil:
		return "To have another GPU allocated, delete the pod and create it again; nothing else makes it anew.", nil
	case !replaces(owner):
		return fmt.Sprintf("It is not evicted, for it is not known what %s %s makes of a pod that is deleted: some fail "+
			"of it. To have another GPU allocated, delete the pod if that makes another, or start the %s again.", owner.Kind,
			owner.Name, owner.Kind), nil
	case !k.Evict:
		return fmt.Sprintf("To have another GPU allocated, delete the pod: %s %s makes another.", owner.Kind, owner.Name), nil
	case !isJob(owner):
		return "", nil
	}
	job, err := k.Jobs.Jobs(r.Pod.Namespace).Get(ctx, owner.Name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return "", nil
	case err != nil:
		return "", fmt.Errorf("look whether Job %s/%s would fail of it: %w", r.Pod.Namespace, owner.Name, err)
	case job.UID == owner.UID && !Outlives(job, r.Pod):
		return fmt.Sprintf("It is not evicted, for Job %s would count that as a failure, and fail. To have another GPU "+
			"allocated, create the Job again; with a podFailurePolicy that ignores the condition DisruptionTarget it would "+
			"go on.", owner.Name), nil
	}
	return "", nil
}

// evict evicts the pod as it was looked at, and no other of that name.
func (k *keeper) evict(ctx context.Context, r Conflict, owner *metav1.OwnerReference) error {
	pod := r.Pod
	err := k.Core.Pods(pod.Namespace).EvictV1(ctx, &policyv1.Eviction{
		ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name},
		DeleteOptions: &metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &pod.UID,
			ResourceVersion: &pod.ResourceVersion}},
	})
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		// Something has happened to it: the next look shows whether it still waits.
		return nil
	}
	if err != nil {
		k.tell(r, fmt.Sprintf("It could not be evicted: %v. To have another GPU allocated, delete the pod: %s %s makes "+
			"another.", err, owner.Kind, owner.Name))
		return fmt.Errorf("evict pod %s, which waits for a GPU that others hold: %w", klog.KObj(pod), err)
	}
	klog.FromContext(ctx).Info("Evicted a pod that could not start", "pod", klog.KObj(pod), "owner", owner.Kind+"/"+
		owner.Name, "claim", klog.KObj(r.Claim), "reason", r.Reason)
	k.tell(r, fmt.Sprintf("It was evicted: %s %s makes another, which is allocated another GPU or waits for one.",
		owner.Kind, owner.Name))
	return nil
}

func (k *keeper) tell(r Conflict, whatNext string) {
	k.Events.Warn(report.Pod(r.Pod.Namespace, r.Pod.Name, r.Pod.UID), v1alpha1.ReasonGPUTaken,
		fmt.Sprintf("The scheduler allocated the pod a GPU that others hold, and it cannot start before they end: %s. %s",
			text.Bound(r.Reason.Error(), mostReason), whatNext))
}
