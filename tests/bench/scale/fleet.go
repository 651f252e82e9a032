// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/dynamic-resource-allocation/resourceslice"
	"k8s.io/utils/ptr"

	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/devices"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu/nvml"
	"github.com/gpushare/dra-driver-gpushare/pkg/mode"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/isolation"
	"github.com/gpushare/dra-driver-gpushare/tests/standins/sim"
)

// fleet is a number of equal nodes, with GPUs of their own.
type fleet struct {
	nodes []*corev1.Node
	// machinesDir has the machine files, and dir is where the parts of sysfs
	// go that belong to their GPUs.
	machinesDir, dir string
	backends         *isolation.Registry
	// read are the GPUs of each node, by name of the machine file.
	read map[string][]*gpu.Machine
}

func newFleet(size int, machinesDir, dir string) *fleet {
	f := &fleet{machinesDir: machinesDir, dir: dir, backends: isolation.NewRegistry(isolation.Config{}),
		read: map[string][]*gpu.Machine{}}
	for i := range size {
		f.nodes = append(f.nodes, node(fmt.Sprintf("scale-%04d", i)))
	}
	return f
}

// node is a Node as a kubelet registers it that is up and has much of all that
// pods want.
func node(name string) *corev1.Node {
	resources := corev1.ResourceList{
		corev1.ResourceCPU: resource.MustParse("96"), corev1.ResourceMemory: resource.MustParse("768Gi"),
		corev1.ResourceEphemeralStorage: resource.MustParse("1Ti"), corev1.ResourcePods: resource.MustParse("110"),
	}
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

// machines are the nodes' GPUs, as the product reads them.
func (f *fleet) machines(ctx context.Context, name string) ([]*gpu.Machine, error) {
	if machines, ok := f.read[name]; ok {
		return machines, nil
	}
	spec, err := sim.Load(filepath.Join(f.machinesDir, name+".yaml"))
	if err != nil {
		return nil, err
	}
	root := filepath.Join(f.dir, name)
	if err := os.MkdirAll(root, 0o755); err != nil {
		return nil, fmt.Errorf("simulate machine %s: %w", name, err)
	}
	if err := spec.WriteRoot(root); err != nil {
		return nil, fmt.Errorf("simulate machine %s: %w", name, err)
	}
	machines := make([]*gpu.Machine, 0, len(f.nodes))
	for _, n := range f.nodes {
		machine, err := nvml.Read(ctx, spec.ForNode(n.Name).NVML(), nvml.Options{SysFS: filepath.Join(root, sim.SysDir)})
		if err != nil {
			return nil, fmt.Errorf("read the GPUs of machine %s: %w", name, err)
		}
		machines = append(machines, machine)
	}
	f.read[name] = machines
	return machines, nil
}

// resources are the pools of all nodes in a mode, as the product publishes
// them.
func (f *fleet) resources(ctx context.Context, c contestant) ([]resourceslice.DriverResources, error) {
	machines, err := f.machines(ctx, c.machine)
	if err != nil {
		return nil, err
	}
	out := make([]resourceslice.DriverResources, 0, len(machines))
	for i, machine := range machines {
		resources, err := f.build(f.nodes[i].Name, machine, c.mode, nil)
		if err != nil {
			return nil, err
		}
		out = append(out, resources)
	}
	return out, nil
}

// build is the pool of one node, with its GPUs in this order.
func (f *fleet) build(node string, machine *gpu.Machine, m mode.Mode, order []int) (resourceslice.DriverResources,
	error) {
	var options []devices.Options
	for _, served := range m.ServedModes() {
		backend, err := f.backends.For(served)
		if err != nil {
			return resourceslice.DriverResources{}, err
		}
		by := mode.IsolationNamed(backend.Name())
		slots := by.Shares
		if slots == 0 {
			slots = mode.DefaultSlots
		}
		options = append(options, devices.Options{
			Pool: v1alpha1.PoolName(node), Mode: served, Slots: slots, Order: order,
			Isolation: by.Name, IsolationLevel: string(by.Level),
		})
	}
	if m == mode.Dynamic {
		return devices.BuildDynamic(machine, options), nil
	}
	return devices.Build(machine, options[0]), nil
}

// published are the ResourceSlices of all nodes in a mode, node by node.
func (f *fleet) published(ctx context.Context, c contestant) ([][]*resourceapi.ResourceSlice, error) {
	all, err := f.resources(ctx, c)
	if err != nil {
		return nil, err
	}
	out := make([][]*resourceapi.ResourceSlice, 0, len(all))
	for i, resources := range all {
		out = append(out, slicesOf(f.nodes[i], resources))
	}
	return out, nil
}

// slicesOf are the objects that the library's controller makes of a node's one
// pool, but for the random end of their names.
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
