// SPDX-License-Identifier: Apache-2.0

package spread

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/ptr"

	"github.com/gpushare/dra-driver-gpushare/pkg/apis/ack"
	"github.com/gpushare/dra-driver-gpushare/pkg/controller/pending"
	"github.com/gpushare/dra-driver-gpushare/pkg/informer"
	"github.com/gpushare/dra-driver-gpushare/pkg/legacy"
)

// gangMost is for how many pods of a gang room is looked for.
const gangMost = 64

// byGang is the index of pods by the keys of their gangs.
const byGang = "gang of those without a node"

// gangOf is a cache.IndexFunc.
func gangOf(object any) ([]string, error) {
	pod, ok := object.(*corev1.Pod)
	if !ok || groupOf(pod) == "" {
		return nil, nil
	}
	return []string{keyOf(pod)}, nil
}

// keyOf is the key by which a pod is looked at: that of its gang, which is looked at as one
// however many pods it has, or its own. Only that of a gang has two slashes.
func keyOf(pod *corev1.Pod) string {
	if group := groupOf(pod); group != "" {
		return pod.Namespace + "/gang/" + group
	}
	return cache.MetaObjectToName(pod).String()
}

// together are the pods that the scheduler places together or not at all: those of a gang that
// wait, in the order of their names, or the one that the key names.
func (t *teller) together(key string) ([]*corev1.Pod, error) {
	if strings.Count(key, "/") < 2 {
		pod, exists, err := informer.Get[*corev1.Pod](t.Pods, key)
		if err != nil || !exists {
			return nil, err
		}
		return []*corev1.Pod{pod}, nil
	}
	objects, err := t.Pods.GetIndexer().ByIndex(byGang, key)
	if err != nil {
		return nil, fmt.Errorf("look for the pods of gang %s: %w", key, err)
	}
	var pods []*corev1.Pod
	for _, object := range objects {
		pod, ok := object.(*corev1.Pod)
		if !ok {
			continue
		}
		if _, waits := pending.Refusal(pod); waits {
			pods = append(pods, pod)
		}
	}
	slices.SortFunc(pods, func(a, b *corev1.Pod) int { return cmp.Compare(a.Name, b.Name) })
	return pods[:min(len(pods), gangMost)], nil
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
