// SPDX-License-Identifier: Apache-2.0

package nodestatus

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/gpushare/dra-driver-gpushare/pkg/informer"
	"github.com/gpushare/dra-driver-gpushare/pkg/legacy"
	"github.com/gpushare/dra-driver-gpushare/pkg/scheduling"
)

// Node is what the controller keeps of a node.
type Node struct {
	metav1.ObjectMeta
	// Capacity and Allocatable are the amounts that the node shows.
	Capacity, Allocatable corev1.ResourceList
	// OursInCapacity and OursInAllocatable are those that nobody but the controller
	// wrote. Others says that somebody else wrote some.
	OursInCapacity, OursInAllocatable []corev1.ResourceName
	Others                            bool
	// Foreign are those of a device plugin.
	Foreign []legacy.Foreign
	// Plugged are the resources, besides ACK's, that device plugins serve here.
	Plugged []corev1.ResourceName
	// Taints and Unschedulable are what keeps pods from the node.
	Taints        []corev1.Taint
	Unschedulable bool
}

// Read returns what there is to keep of a node.
func Read(node *corev1.Node) *Node {
	owners := legacy.ReadOwners(node.ManagedFields)
	inCapacity, inAllocatable := owners.OursAlone()
	return &Node{
		ObjectMeta: metav1.ObjectMeta{Name: node.Name, UID: node.UID, ResourceVersion: node.ResourceVersion},
		Capacity:   legacy.Pick(node.Status.Capacity), Allocatable: legacy.Pick(node.Status.Allocatable),
		OursInCapacity: inCapacity, OursInAllocatable: inAllocatable, Others: owners.Others(),
		Foreign: owners.Foreign(node.Status), Plugged: plugged(node.Status.Allocatable),
		Taints: node.Spec.Taints, Unschedulable: node.Spec.Unschedulable,
	}
}

// plugged lists the extended resources but ACK's that there are any of, in order.
func plugged(allocatable corev1.ResourceList) []corev1.ResourceName {
	var names []corev1.ResourceName
	for name, amount := range allocatable {
		if scheduling.Extended(name) && !slices.Contains(legacy.Names(), name) && !amount.IsZero() {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// Serves says whether a device plugin of some node serves a resource. The informer
// holds nodes as Transform leaves them.
func Serves(nodes cache.SharedIndexInformer, name corev1.ResourceName) bool {
	return slices.ContainsFunc(informer.List[*Node](nodes), func(n *Node) bool {
		return slices.Contains(n.Plugged, name) || slices.ContainsFunc(n.Foreign, func(f legacy.Foreign) bool {
			return f.Name == name
		})
	})
}

// Closed is what keeps pods from a node, as its spec has it; nothing of one that is not known.
func Closed(nodes cache.SharedIndexInformer, name string) corev1.NodeSpec {
	object, _, err := nodes.GetStore().GetByKey(name)
	if node, ok := object.(*Node); ok && err == nil {
		return corev1.NodeSpec{Taints: node.Taints, Unschedulable: node.Unschedulable}
	}
	return corev1.NodeSpec{}
}

// Transform is a transform for informers of nodes: they hold a *Node for each.
func Transform(object any) (any, error) {
	if node, ok := object.(*corev1.Node); ok {
		return Read(node), nil
	}
	return object, nil
}

// same says whether there is nothing in it for the controller that one node became the
// other.
func same(before, after *Node) bool {
	a, b := *before, *after
	a.ResourceVersion, b.ResourceVersion = "", ""
	return apiequality.Semantic.DeepEqual(a, b)
}

// shows says whether the node shows just these amounts.
func (n *Node) shows(want corev1.ResourceList) bool {
	return legacy.Equal(n.Capacity, want) && legacy.Equal(n.Allocatable, want)
}
