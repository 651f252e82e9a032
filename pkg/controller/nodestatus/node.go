// SPDX-License-Identifier: Apache-2.0

package nodestatus

import (
	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpushare/dra-driver-gpushare/pkg/controller/cache"
	"github.com/gpushare/dra-driver-gpushare/pkg/legacy"
)

// Node is what the controller uses of a node.
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
}

// Read returns what the controller makes of a node.
func Read(node *cache.Node) *Node {
	inCapacity, inAllocatable := node.Owners.OursAlone()
	return &Node{
		ObjectMeta: metav1.ObjectMeta{Name: node.Name, UID: node.UID, ResourceVersion: node.ResourceVersion},
		Capacity:   legacy.Pick(node.Capacity), Allocatable: legacy.Pick(node.Allocatable),
		OursInCapacity: inCapacity, OursInAllocatable: inAllocatable, Others: node.Owners.Others(),
		Foreign: node.Owners.Foreign(node.Status()),
	}
}

// same reports whether there is nothing in it for the controller that one node became the
// other.
func same(before, after *Node) bool {
	a, b := *before, *after
	a.ResourceVersion, b.ResourceVersion = "", ""
	return apiequality.Semantic.DeepEqual(a, b)
}

// shows reports whether the node shows just these amounts.
func (n *Node) shows(want corev1.ResourceList) bool {
	return legacy.Equal(n.Capacity, want) && legacy.Equal(n.Allocatable, want)
}
