// SPDX-License-Identifier: Apache-2.0

package podgroups

import (
	"context"
	"errors"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/gpushare/dra-driver-gpushare/pkg/controller/podstate"
)

const (
	// settle is how long kube-controller-manager has to make claims by itself, before pods are woken. It waits twice
	// as long each time, so a pod that is older than its PodGroup by no more is tried again within it, unless many
	// are: it tries ten of all again in a second.
	settle = 2 * time.Second
	// longest is how long it waits at most. Pods of a PodGroup that was found, and is older, were tried since, and wait
	// for something else.
	longest = 1000 * time.Second
	// mostWoken bounds how many pods of a gang are changed before it is seen again who has no claims yet: so many
	// changes take a second, the client's limit.
	mostWoken = 50
)

// wake has the claims of pods made that were there before their PodGroup, once, and returns when to look at the
// gang next. kube-controller-manager makes none without the PodGroup, does not use one that comes, and tries
// again after up to 17 minutes.
func (r *reconciler) wake(ctx context.Context, key string, group observed, g *gang) (time.Duration, error) {
	now := r.Clock.Now()
	pods := slices.DeleteFunc(slices.Clone(g.waiting), func(pod *corev1.Pod) bool {
		again, woken := group.woken[pod.UID]
		return len(podstate.UnmadeClaims(pod)) == 0 || pod.CreationTimestamp.After(group.made) ||
			woken && (again.IsZero() || now.Before(again))
	})
	if len(pods) == 0 || group.found && now.Sub(group.made) > longest {
		return r.nextLook(g), nil
	}
	if wait := settle - r.Clock.Since(group.at); wait > 0 {
		return wait, nil
	}
	if group.woken == nil {
		group.woken = map[types.UID]time.Time{}
		r.groups.Store(key, group)
	}
	if err := r.touch(ctx, pods[:min(len(pods), mostWoken)], group.woken); err != nil {
		return 0, err
	}
	if len(pods) > mostWoken {
		return time.Second, nil
	}
	return r.nextLook(g), nil
}

// touch changes pods, and notes of which that need not be done again, or when.
func (r *reconciler) touch(ctx context.Context, pods []*corev1.Pod, woken map[types.UID]time.Time) error {
	var errs []error
	for _, pod := range pods {
		now := r.Clock.Now()
		switch made, err := podstate.HaveClaimsMade(ctx, r.Changes, pod, now, "its PodGroup is there"); {
		case err != nil:
			errs = append(errs, err)
		case made:
			woken[pod.UID] = time.Time{}
		default:
			woken[pod.UID] = now.Add(lookAgain)
		}
	}
	return errors.Join(errs...)
}
