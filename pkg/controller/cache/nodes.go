// SPDX-License-Identifier: Apache-2.0

package cache

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	coreinformers "k8s.io/client-go/informers/core/v1"

	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/legacy"
)

// Node is what is kept of a node: labels, what keeps pods from it, and of its resources the
// extended ones; all that it can allocate where somebody asks for LivePods.
type Node struct {
	metav1.ObjectMeta
	Taints                []corev1.Taint
	Unschedulable         bool
	Capacity, Allocatable corev1.ResourceList
	// Owners says who wrote its amounts of ACK's resources: the managed fields themselves are
	// most of a node.
	Owners legacy.Owners
	// Features is whether the controller wrote labels of NVIDIA's GPU Feature Discovery on it.
	Features bool
}

// Nodes are all nodes.
type Nodes struct{ *Objects[*Node] }

// Nodes asks for the nodes.
func (r *Reader) Nodes() Nodes {
	c := r.cache
	return Nodes{ask[*Node](r, "nodes", coreinformers.NewNodeInformer(c.Client, c.Resync, nil),
		func(object any) (any, error) {
			if node, ok := object.(*corev1.Node); ok {
				return KeepNode(node, c.live), nil
			}
			return object, nil
		})}
}

// KeepNode is what is kept of a node.
func KeepNode(node *corev1.Node, allocatable bool) *Node {
	kept := &Node{
		ObjectMeta: metav1.ObjectMeta{Name: node.Name, UID: node.UID, ResourceVersion: node.ResourceVersion,
			Labels: node.Labels},
		Taints: node.Spec.Taints, Unschedulable: node.Spec.Unschedulable,
		Capacity: legacy.Pick(node.Status.Capacity), Allocatable: node.Status.Allocatable,
		Owners: legacy.ReadOwners(node.ManagedFields),
		Features: slices.ContainsFunc(node.ManagedFields,
			func(m metav1.ManagedFieldsEntry) bool { return m.Manager == v1alpha1.FeaturesManager }),
	}
	if !allocatable {
		kept.Allocatable = extended(node.Status.Allocatable)
	}
	return kept
}

// Node is a node with what is kept of it, for who works with those of Kubernetes.
func (n *Node) Node() *corev1.Node {
	return &corev1.Node{ObjectMeta: n.ObjectMeta, Spec: n.spec(), Status: n.Status()}
}

// Status is what is kept of the node's status.
func (n *Node) Status() corev1.NodeStatus {
	return corev1.NodeStatus{Capacity: n.Capacity, Allocatable: n.Allocatable}
}

func (n *Node) spec() corev1.NodeSpec {
	return corev1.NodeSpec{Taints: n.Taints, Unschedulable: n.Unschedulable}
}

// Names lists the names of all.
func (n Nodes) Names() []string { return n.GetStore().ListKeys() }

// Closed is what keeps pods from a node, as its spec has it; nothing of one that is not known.
func (n Nodes) Closed(name string) corev1.NodeSpec {
	node, _ := n.Get(name)
	if node == nil {
		return corev1.NodeSpec{}
	}
	return node.spec()
}

// Serve reports whether a device plugin of some node serves a resource.
func (n Nodes) Serve(name corev1.ResourceName) bool {
	ours := slices.Contains(legacy.Names(), name)
	return slices.ContainsFunc(n.List(), func(node *Node) bool {
		if ours {
			return slices.ContainsFunc(node.Owners.Foreign(node.Status()),
				func(f legacy.Foreign) bool { return f.Name == name })
		}
		amount := node.Allocatable[name]
		return !amount.IsZero()
	})
}
