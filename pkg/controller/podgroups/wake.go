// SPDX-License-Identifier: Apache-2.0

package podgroups

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/gpushare/dra-driver-gpushare/pkg/controller/podstate"
)

const (
	// late is how much older than its PodGroup a pod is that has to be woken. Of a younger one the next try is
	// near: kube-controller-manager waits twice as long each time.
	late = 2 * time.Second
	// settle is how long kube-controller-manager has to see a PodGroup, before pods are woken for which it made no
	// claims by itself.
	settle = time.Second
)

// wake has the claims of pods made that were there before their PodGroup, once, and returns when to look at the
// gang next. kube-controller-manager makes none without the PodGroup, does not go by one that comes, and tries
// again after up to 17 minutes.
func (k *keeper) wake(ctx context.Context, key string, group observed, g *gang) (time.Duration, error) {
	now := k.Clock.Now()
	pods := slices.DeleteFunc(slices.Clone(g.waiting), func(pod *corev1.Pod) bool {
		again, woken := group.woken[pod.UID]
		return len(podstate.UnmadeClaims(pod)) == 0 || group.made.Sub(pod.CreationTimestamp.Time) < late ||
			woken && (again.IsZero() || now.Before(again))
	})
	if len(pods) == 0 {
		return k.nextLook(g), nil
	}
	if wait := settle - k.Clock.Since(group.at); wait > 0 {
		return wait, nil
	}
	if group.woken == nil {
		group.woken = map[types.UID]time.Time{}
		k.mu.Lock()
		k.observed[key] = group
		k.mu.Unlock()
	}
	if err := k.touch(ctx, pods, group.woken); err != nil {
		return 0, err
	}
	return k.nextLook(g), nil
}

// touch changes pods, and notes of which that need not be done again, or when. That the API server refuses one, as
// by a policy for it, keeps no other waiting, and the gang goes on.
func (k *keeper) touch(ctx context.Context, pods []*corev1.Pod, woken map[types.UID]time.Time) error {
	var errs []error
	for _, pod := range pods {
		logger := klog.LoggerWithValues(klog.FromContext(ctx), "pod", klog.KObj(pod))
		now := k.Clock.Now()
		err := podstate.Touch(ctx, k.Changes, pod, now)
		switch {
		case err == nil:
			woken[pod.UID] = time.Time{}
			logger.V(2).Info("Had the claims of a pod made that waited for its PodGroup")
		case apierrors.ReasonForError(err) != metav1.StatusReasonUnknown:
			woken[pod.UID] = now.Add(lookAgain)
			logger.Error(err, "The claims of a pod are not made, which waited for its PodGroup: will try again")
		default:
			errs = append(errs, fmt.Errorf("have the claims of pod %s made, which waited for its PodGroup: %w",
				klog.KObj(pod), err))
		}
	}
	return errors.Join(errs...)
}
