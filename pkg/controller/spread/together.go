// SPDX-License-Identifier: Apache-2.0

package spread

import (
	"cmp"
	"context"
	"slices"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/utils/ptr"

	"github.com/gpushare/dra-driver-gpushare/pkg/apis/ack"
	"github.com/gpushare/dra-driver-gpushare/pkg/controller/pending"
	"github.com/gpushare/dra-driver-gpushare/pkg/informer"
	"github.com/gpushare/dra-driver-gpushare/pkg/legacy"
)

// gangMost is for how many pods of a gang room is looked for.
const gangMost = 64

// together are the pods that the scheduler places together with a pod, or not at all: those
// of its gang that wait, or itself. first is whether it is the one that stands for them.
func (t *teller) together(pod *corev1.Pod) (pods []*corev1.Pod, first bool) {
	name := groupOf(pod)
	if name == "" {
		return []*corev1.Pod{pod}, true
	}
	for _, other := range informer.List[*corev1.Pod](t.Pods) {
		if other.Namespace != pod.Namespace || groupOf(other) != name {
			continue
		}
		if _, waits := pending.Refusal(other); waits {
			pods = append(pods, other)
		}
	}
	slices.SortFunc(pods, func(a, b *corev1.Pod) int { return cmp.Compare(a.Name, b.Name) })
	return pods[:min(len(pods), gangMost)], len(pods) > 0 && pods[0].UID == pod.UID
}

// least is how many of so many pods of a gang have to be placed together.
func least(pod *corev1.Pod, waiting int) int {
	n, err := strconv.Atoi(pod.Labels[ack.LabelMinAvailable])
	if err != nil || n < 1 {
		return waiting
	}
	return min(n, waiting)
}

func groupOf(pod *corev1.Pod) string {
	if group := pod.Spec.SchedulingGroup; group != nil {
		return ptr.Deref(group.PodGroupName, "")
	}
	return ""
}

// claimsOf are the claims that are not allocated, of each of the pods that has such; none where
// one is not there yet.
func (t *teller) claimsOf(ctx context.Context, pods []*corev1.Pod) ([][]*resourceapi.ResourceClaim, error) {
	var all [][]*resourceapi.ResourceClaim
	for _, pod := range pods {
		claims, made, err := pending.ClaimsOf(ctx, t.Client, pod)
		if err != nil || !made {
			return nil, err
		}
		// Of CPUs only the scheduler knows how many are free.
		for i := range claims {
			claims[i], _ = legacy.WithoutCPUs(claims[i])
		}
		claims = slices.DeleteFunc(claims, func(c *resourceapi.ResourceClaim) bool {
			return c.Status.Allocation != nil || len(c.Spec.Devices.Requests) == 0
		})
		if len(claims) > 0 {
			all = append(all, claims)
		}
	}
	return all, nil
}
