// SPDX-License-Identifier: Apache-2.0

package nodes

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/gpushare/dra-driver-gpushare/pkg/apis/ack"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
	"github.com/gpushare/dra-driver-gpushare/pkg/inspect/published"
	"github.com/gpushare/dra-driver-gpushare/pkg/mode"
)

// Node returns a Node as a running kubelet registers it.
func Node(name string, resources corev1.ResourceList) *corev1.Node {
	now := metav1.Now()
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{corev1.LabelHostname: name}},
		Status: corev1.NodeStatus{
			Capacity: resources, Allocatable: resources,
			Conditions: []corev1.NodeCondition{{
				Type: corev1.NodeReady, Status: corev1.ConditionTrue, Reason: "Simulated", LastHeartbeatTime: now,
				LastTransitionTime: now,
			}},
		},
	}
}

// Slices returns the ResourceSlices that the driver publishes for a node with these GPUs in a mode. The node owns them.
func Slices(node *corev1.Node, machine *gpu.Machine, in mode.Mode) ([]*resourceapi.ResourceSlice, error) {
	labelled := node.DeepCopy()
	if in != mode.Exclusive { // which is that of nodes without the label
		labelled.Labels[ack.NodeLabelSchedule] = string(in)
	}
	out, err := published.Of(labelled, machine, false)
	if err != nil {
		return nil, fmt.Errorf("publish the GPUs of node %s: %w", node.Name, err)
	}
	for _, slice := range out {
		slice.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: node.Name, UID: node.UID,
			Controller: ptr.To(true)}}
	}
	return out, nil
}
