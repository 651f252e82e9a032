// SPDX-License-Identifier: Apache-2.0

package preempt

import (
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"

	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/claim"
)

// holders are the pods that hold devices of the node, each with its kind: the same where it
// does not matter which of them goes, empty where a pod is like no other.
func (n *node) holders() map[types.UID]string {
	held, shared := map[types.UID][]*resourceapi.ResourceClaim{}, map[types.UID]bool{}
	for _, c := range n.claims {
		pods, others := claim.Pods(c)
		if others || len(claim.Held(c, v1alpha1.PoolName(n.Name))) == 0 {
			continue
		}
		for _, pod := range pods {
			held[pod.UID] = append(held[pod.UID], c)
			shared[pod.UID] = shared[pod.UID] || len(pods) > 1
		}
	}
	kinds := map[types.UID]string{}
	for uid := range held {
		kinds[uid] = ""
	}
	for _, pod := range n.pods {
		if claims, holds := held[pod.UID]; holds && !shared[pod.UID] {
			kinds[pod.UID] = kindOf(claims, pod)
		}
	}
	return kinds
}

// kindOf is what a pod holds and needs. Shares of one GPU are alike by device and amount.
func kindOf(claims []*resourceapi.ResourceClaim, pod *corev1.Pod) string {
	var parts []string
	for _, claim := range claims {
		for _, r := range claim.Status.Allocation.Devices.Results {
			parts = append(parts, r.Driver+"/"+r.Pool+"/"+r.Device+amountsOf(r.ConsumedCapacity))
		}
	}
	slices.Sort(parts)
	return strings.Join(parts, " ") + " with" + amountsOf(counted(pod))
}

func amountsOf[K ~string](amounts map[K]resource.Quantity) string {
	var parts []string
	for name, amount := range amounts {
		parts = append(parts, " "+string(name)+"="+amount.String())
	}
	slices.Sort(parts)
	return strings.Join(parts, "")
}
