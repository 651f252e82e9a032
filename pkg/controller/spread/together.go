// SPDX-License-Identifier: Apache-2.0

package spread

import (
	"cmp"
	"context"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	toolscache "k8s.io/client-go/tools/cache"

	"github.com/gpushare/dra-driver-gpushare/pkg/controller/cache"
	"github.com/gpushare/dra-driver-gpushare/pkg/controller/podstate"
	"github.com/gpushare/dra-driver-gpushare/pkg/deviceplugin"
	"github.com/gpushare/dra-driver-gpushare/pkg/legacy"
	"github.com/gpushare/dra-driver-gpushare/pkg/scheduling"
)

// gangMost is for how many pods of a gang room is looked for.
const gangMost = 64

// keyOf is the key by which a pod is looked at: that of its gang, which is looked at as one
// however many pods it has, or its own. Only that of a gang has two slashes.
func keyOf(pod *corev1.Pod) string {
	if group := groupOf(pod); group != "" {
		return pod.Namespace + "/gang/" + group
	}
	return cache.Key(pod)
}

// together are the pods that the scheduler places together or not at all: those of a gang that
// wait, in the order of their names, or the one that the key names.
func (t *teller) together(key string) []*corev1.Pod {
	var pods []*corev1.Pod
	if parts := strings.Split(key, "/"); len(parts) == 3 {
		pods = slices.Clone(t.pods.Gang(toolscache.NewObjectName(parts[0], parts[2])))
	} else if pod, exists := t.pods.Get(key); exists {
		pods = append(pods, pod)
	}
	pods = slices.DeleteFunc(pods, func(pod *corev1.Pod) bool {
		_, waits := podstate.Unschedulable(pod)
		return !waits
	})
	slices.SortFunc(pods, func(a, b *corev1.Pod) int { return cmp.Compare(a.Name, b.Name) })
	return pods[:min(len(pods), gangMost)]
}

// least is how many of the pods that wait together have to be placed at once: those of a gang that
// have a node count.
func (t *teller) least(group []*corev1.Pod) int {
	gang, is := podstate.Gang(group[0])
	n, err := legacy.MinAvailable(group[0])
	if !is || err != nil {
		return len(group)
	}
	for _, pod := range t.gangs.Gang(gang) {
		if other, is := podstate.Gang(pod); is && other == gang && pod.Spec.NodeName != "" &&
			pod.DeletionTimestamp == nil && !deviceplugin.Ended(pod) {
			n--
		}
	}
	return min(max(int(n), 1), len(group))
}

// groupOf is the name of the gang that a pod is placed with; empty where it has none.
func groupOf(pod *corev1.Pod) string {
	gang, _ := podstate.Gang(pod)
	return gang.Name
}

// seekers are those of the pods that have claims for GPUs that are not allocated, and their claims; none where a claim
// is not there yet.
func (t *teller) seekers(ctx context.Context, pods []*corev1.Pod) ([]scheduling.Pod, error) {
	var all []scheduling.Pod
	for _, pod := range pods {
		claims, made, err := podstate.Claims(ctx, t.Client, pod)
		if err != nil || !made {
			return nil, err
		}
		// Of CPUs, and devices of other drivers, only the scheduler knows how many are free.
		for i := range claims {
			claims[i], _ = legacy.WithoutCPUs(claims[i])
			spec := &claims[i].Spec.Devices
			spec.Requests = slices.DeleteFunc(spec.Requests, t.ofOthers)
			legacy.PruneConstraints(spec)
		}
		claims = slices.DeleteFunc(claims, func(c *resourceapi.ResourceClaim) bool {
			return isWaiting(c) && len(c.Spec.Devices.Requests) == 0
		})
		if slices.ContainsFunc(claims, isWaiting) {
			all = append(all, scheduling.Pod{Pod: pod, Claims: claims})
		}
	}
	return all, nil
}

// ofOthers reports whether no alternative of a request is for devices of this driver.
func (t *teller) ofOthers(r resourceapi.DeviceRequest) bool {
	return !slices.ContainsFunc(scheduling.Served(&r), func(r scheduling.Request) bool {
		class, _ := t.classes.Get(r.Class)
		return r.OfDriver(class)
	})
}
