// SPDX-License-Identifier: Apache-2.0

package why

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/dynamic-resource-allocation/resourceclaim"
	"k8s.io/utils/ptr"

	"github.com/gpushare/dra-driver-gpushare/pkg/claim"
	"github.com/gpushare/dra-driver-gpushare/pkg/explain"
	"github.com/gpushare/dra-driver-gpushare/pkg/scheduling"
)

// allOnNodes says that there is nothing to look for: all claims have their devices, and some have those of a node.
func allOnNodes(claims []*resourceapi.ResourceClaim) bool {
	return slices.ContainsFunc(claims, onANode) &&
		!slices.ContainsFunc(claims, func(c *resourceapi.ResourceClaim) bool { return c.Status.Allocation == nil })
}

// onANode reports whether the claim is allocated on a node, which the scheduler names then. Devices that pods can use
// from many nodes, as those of another driver, are on none: they have no node selector, or one for nodes' labels.
func onANode(c *resourceapi.ResourceClaim) bool {
	return c.Status.Allocation != nil && c.Status.Allocation.NodeSelector != nil &&
		!slices.ContainsFunc(c.Status.Allocation.NodeSelector.NodeSelectorTerms,
			func(term corev1.NodeSelectorTerm) bool { return len(term.MatchFields) == 0 }) // the only field is the name
}

// elsewhere says of a pod of whose claims allOnNodes is true where they are, and what keeps the pod from there.
func (in Input) elsewhere(claims []*resourceapi.ResourceClaim, room scheduling.Room) (string, error) {
	nodes := in.byName()
	claims = slices.DeleteFunc(slices.Clone(claims), func(c *resourceapi.ResourceClaim) bool { return !onANode(c) })
	has := make([]scheduling.Where, len(claims))
	names := make([]string, len(claims))
	for i, c := range claims {
		var err error
		if has[i], err = scheduling.Possible(&corev1.Pod{}, claims[i:i+1]); err != nil {
			return "", err
		}
		names[i] = c.Name
	}
	var where []string
	for _, n := range slices.SortedStableFunc(slices.Values(room.Nodes), excludedLast) {
		var there []string
		for i, name := range names {
			if has[i](nodes[n.Name]) {
				there = append(there, name)
			}
		}
		if len(there) > 0 && len(where) < helpMost {
			where = append(where, fmt.Sprintf("%s allocated on node %s, but %s", areNamed(there), n.Name, explain.Closed(n)))
		}
	}
	if len(where) == 0 {
		return areNamed(names) + " allocated on no node that is known", nil
	}
	return strings.Join(where, "; "), nil
}

func areNamed(claims []string) string {
	if len(claims) == 1 {
		return "claim " + claims[0] + " is"
	}
	return "claims " + some(claims) + " are"
}

// reserved says who has an allocated claim.
func reserved(c *resourceapi.ResourceClaim) string {
	var by []string
	if pods := users(c); len(pods) > 0 {
		by = append(by, "used by pod "+strings.Join(pods, ", "))
	}
	var others []string
	for _, other := range claim.Others(c) {
		others = append(others, other.Resource+" "+other.Name)
	}
	if len(others) > 0 {
		by = append(by, "reserved for "+some(others))
	}
	switch {
	case len(by) > 0:
		return " and " + strings.Join(by, " and ")
	case c.DeletionTimestamp != nil:
		return " and being deleted"
	default:
		return ", and no pod uses it: it holds its GPUs until it is deleted"
	}
}

// users are the names of the pods that a claim is reserved for.
func users(c *resourceapi.ResourceClaim) []string {
	pods, _ := claim.Pods(c)
	names := make([]string, 0, len(pods))
	for _, pod := range pods {
		names = append(names, c.Namespace+"/"+pod.Name)
	}
	return names
}

// unused reports whether a pod names a device's claim, and no container of it names the request.
func unused(pod *corev1.Pod, d *Device) bool {
	names := slices.ContainsFunc(pod.Spec.ResourceClaims, func(c corev1.PodResourceClaim) bool {
		name, _, err := resourceclaim.Name(pod, &c)
		return err == nil && ptr.Deref(name, "") == d.Claim
	})
	return names && !slices.ContainsFunc(claim.Containers(pod), func(c claim.PodContainer) bool {
		return c.UsesRequest(d.Claim, d.Request)
	})
}
