// SPDX-License-Identifier: Apache-2.0

package preempt

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

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

// without is what is left of the node's resources when some of its pods have gone.
func (n *node) without(gone func(types.UID) bool) corev1.ResourceList {
	left := n.Status.Allocatable.DeepCopy()
	if left == nil {
		left = corev1.ResourceList{}
	}
	takes := func(name corev1.ResourceName, amount resource.Quantity) {
		rest := left[name].DeepCopy()
		rest.Sub(amount)
		left[name] = rest
	}
	for _, pod := range n.pods {
		if gone(pod.UID) {
			continue
		}
		for name, amount := range counted(pod) {
			takes(name, amount)
		}
		takes(corev1.ResourcePods, *resource.NewQuantity(1, resource.DecimalSI))
	}
	return left
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
// free of the node.
func (w wish) resourcesFit(n *node, free corev1.ResourceList) bool {
	has := func(name corev1.ResourceName) resource.Quantity { return free[name] }
	byDevices := func(name corev1.ResourceName) bool {
		plugged := n.Status.Allocatable[name]
		return plugged.IsZero() && w.byClass(name)
	}
	pods := has(corev1.ResourcePods)
	return pods.CmpInt64(1) >= 0 && len(scheduling.Short(w.requests, has, byDevices)) == 0
}
