// SPDX-License-Identifier: Apache-2.0

package preempt

import (
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/claim"
	"github.com/gpushare/dra-driver-gpushare/pkg/devices/view"
	"github.com/gpushare/dra-driver-gpushare/pkg/scheduling"
)

// node is what is known of a node.
type node struct {
	*corev1.Node
	// pods are those on it that have not ended, as the cache has them.
	pods []*corev1.Pod
	// claims are those that are allocated GPUs of it.
	claims []*resourceapi.ResourceClaim
	// pool is what it offers; nothing where that is not whole.
	pool []*view.Slice
}

// without is what the node has beside devices when some of its pods have gone.
func (n *node) without(gone func(types.UID) bool) scheduling.NodeResources {
	beside := scheduling.NodeResources{Allocatable: n.Status.Allocatable}
	for _, pod := range n.pods {
		if !gone(pod.UID) {
			beside.Add(counted(pod))
		}
	}
	return beside
}

// wish is what a pod waits for.
type wish struct {
	pod *corev1.Pod
	// claims are its own, none of which is allocated, and the one that the scheduler would make; in plan without admin,
	// those with adminAccess.
	claims, admin []*resourceapi.ResourceClaim
	// requests are its resources; byClass says which of them a DeviceClass hands out.
	requests corev1.ResourceList
	byClass  func(corev1.ResourceName) bool
	// where is where it can be, whatever is there; nil where that is not known.
	where scheduling.Where
	// keptOff are the pods that keep it off nodes.
	keptOff keptOff
}

// uids are those of the claims. The one that the scheduler would make has none.
func (w wish) uids() []types.UID {
	var uids []types.UID
	for _, claim := range w.claims {
		if claim.UID != "" {
			uids = append(uids, claim.UID)
		}
	}
	return uids
}

// withAdminAccess reports whether a claim is also for devices that others hold: nobody goes for such a claim.
func withAdminAccess(c *resourceapi.ResourceClaim) bool {
	return slices.ContainsFunc(c.Spec.Devices.Requests, func(r resourceapi.DeviceRequest) bool {
		return r.Exactly != nil && ptr.Deref(r.Exactly.AdminAccess, false)
	})
}

// resourcesFit reports whether the pod's resources, those that devices are not, fit into what is
// left of the node.
func (w wish) resourcesFit(n *node, beside scheduling.NodeResources) bool {
	return len(beside.Short(w.requests, func(name corev1.ResourceName) bool {
		plugged := n.Status.Allocatable[name]
		return plugged.IsZero() && w.byClass(name)
	})) == 0
}

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
