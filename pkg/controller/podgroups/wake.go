// SPDX-License-Identifier: Apache-2.0

package podgroups

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
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
	pods := slices.DeleteFunc(slices.Clone(g.waiting), func(pod *corev1.Pod) bool {
		return len(podstate.UnmadeClaims(pod)) == 0 || group.made.Sub(pod.CreationTimestamp.Time) < late
	})
	if group.woken || len(pods) == 0 {
		return k.nextLook(g), nil
	}
	if wait := settle - k.Clock.Since(group.at); wait > 0 {
		return wait, nil
	}
	var errs []error
	for _, pod := range pods {
		if err := podstate.Touch(ctx, k.Changes, pod, k.Clock.Now()); err != nil {
			errs = append(errs, fmt.Errorf("have the claims of pod %s made, which waited for its PodGroup: %w",
				klog.KObj(pod), err))
		}
	}
	if len(errs) > 0 {
		return 0, errors.Join(errs...)
	}
	klog.FromContext(ctx).Info("Had the claims of pods made that waited for their PodGroup", "podGroup", key, "pods",
		len(pods))
	group.woken = true
	k.mu.Lock()
	k.observed[key] = group
	k.mu.Unlock()
	return k.nextLook(g), nil
}
