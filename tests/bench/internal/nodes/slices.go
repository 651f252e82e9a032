// SPDX-License-Identifier: Apache-2.0

package nodes

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/dynamic-resource-allocation/resourceslice"
	"k8s.io/utils/ptr"

	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/devices"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
	"github.com/gpushare/dra-driver-gpushare/pkg/mode"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/isolation"
)

// New is a Node as a kubelet registers it that is up.
func New(name string, resources corev1.ResourceList) *corev1.Node {
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

// Publisher makes the ResourceSlices that the driver publishes.
type Publisher struct{ backends *isolation.Registry }

// NewPublisher makes a Publisher, with the driver's default settings.
func NewPublisher() *Publisher { return &Publisher{isolation.NewRegistry(isolation.Config{})} }

// Slices are those of a node in a mode, with its GPUs in this order, as the library's controller makes them, but for
// the random end of their names. The node's UID is that of their owner.
func (p *Publisher) Slices(node *corev1.Node, machine *gpu.Machine, m mode.Mode, order []int) (
	[]*resourceapi.ResourceSlice, error) {
	var options []devices.Options
	for _, served := range m.ServedModes() {
		backend, err := p.backends.For(served)
		if err != nil {
			return nil, err
		}
		by := mode.IsolationNamed(backend.Name())
		slots := by.Shares
		if slots == 0 {
			slots = mode.DefaultSlots
		}
		options = append(options, devices.Options{
			Pool: v1alpha1.PoolName(node.Name), Mode: served, Slots: slots, Order: order,
			Isolation: by.Name, IsolationLevel: string(by.Level),
		})
	}
	resources := devices.Build(machine, options[0])
	if m == mode.Dynamic {
		resources = devices.BuildDynamic(machine, options)
	}
	return slicesOf(node, resources), nil
}

func slicesOf(node *corev1.Node, resources resourceslice.DriverResources) []*resourceapi.ResourceSlice {
	poolName := v1alpha1.PoolName(node.Name)
	pool := resources.Pools[poolName]
	out := make([]*resourceapi.ResourceSlice, 0, len(pool.Slices))
	for i, s := range pool.Slices {
		out = append(out, &resourceapi.ResourceSlice{
			ObjectMeta: metav1.ObjectMeta{
				Name: fmt.Sprintf("%05x-%s-%s-bench", i, v1alpha1.DriverName, node.Name),
				OwnerReferences: []metav1.OwnerReference{{
					APIVersion: "v1", Kind: "Node", Name: node.Name, UID: node.UID, Controller: ptr.To(true),
				}},
			},
			Spec: resourceapi.ResourceSliceSpec{
				Driver: v1alpha1.DriverName, NodeName: &node.Name, Devices: s.Devices, SharedCounters: s.SharedCounters,
				Pool: resourceapi.ResourcePool{Name: poolName, Generation: 1, ResourceSliceCount: int64(len(pool.Slices))},
			},
		})
	}
	return out
}
