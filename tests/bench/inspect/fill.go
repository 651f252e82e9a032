// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"

	"github.com/google/uuid"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/ptr"

	"github.com/gpushare/dra-driver-gpushare/pkg/apis/ack"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/devices"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
	"github.com/gpushare/dra-driver-gpushare/pkg/mode"
)

const (
	gpusPerNode = 8
	// writers write side by side.
	writers = 32
	// imagesPerNode is how many images a kubelet reports by default; they are most
	// of a Node.
	imagesPerNode = 50
	// namespace has all claims.
	namespace = "default"
)

func nodeName(i int) string { return fmt.Sprintf("inspect-%04d", i) }

// fill makes the nodes, their slices, a claim for a share of each GPU, and so many
// pods on each node. Nobody uses the claims: of pods that are not there, the
// controller manager would take them away.
func fill(ctx context.Context, client kubernetes.Interface, nodes, pods int) error {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(writers)
	for i := range nodes {
		group.Go(func() error {
			if err := ctx.Err(); err != nil {
				return err
			}
			if err := fillNode(ctx, client, nodeName(i), pods > 0); err != nil {
				return err
			}
			return fillPods(ctx, client, nodeName(i), pods)
		})
	}
	return group.Wait()
}

// withoutClaim is what the first pod of a node holds of its first GPU, in GiB.
const withoutClaim = 3

// fillPods makes the pods of a node, of which the first holds some of a GPU without
// a claim.
func fillPods(ctx context.Context, client kubernetes.Interface, node string, pods int) error {
	for i := range pods {
		pod := &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("%s-pod-%d", node, i), Annotations: map[string]string{}},
			Spec: corev1.PodSpec{NodeName: node, AutomountServiceAccountToken: ptr.To(false), Containers: []corev1.Container{{
				Name: "main", Image: "registry.example.com/some-team/some-image:v1.2.3",
				Env: []corev1.EnvVar{{Name: "SETTING", Value: "some value of some length, as programs have it"}},
			}}},
		}
		if i == 0 {
			pod.Annotations[ack.AnnotationMemory] = fmt.Sprintf(`{"0":{"0":%d}}`, withoutClaim)
			pod.Spec.Containers[0].Resources.Limits = corev1.ResourceList{
				ack.ResourceMemory: *resource.NewQuantity(withoutClaim, resource.DecimalSI)}
		}
		if _, err := client.CoreV1().Pods(namespace).Create(ctx, pod, metav1.CreateOptions{}); err != nil {
			return fmt.Errorf("make pod %s: %w", pod.Name, err)
		}
	}
	return nil
}

func fillNode(ctx context.Context, client kubernetes.Interface, name string, partly bool) error {
	created, err := client.CoreV1().Nodes().Create(ctx, node(name), metav1.CreateOptions{})
	if err != nil {
		return fmt.Errorf("make node %s: %w", name, err)
	}
	if _, err := client.ResourceV1().ResourceSlices().Create(ctx, slice(created, partly),
		metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("make the slice of node %s: %w", name, err)
	}
	claims := client.ResourceV1().ResourceClaims(namespace)
	for g := range gpusPerNode {
		claim, err := claims.Create(ctx, claim(name, g), metav1.CreateOptions{})
		if err != nil {
			return fmt.Errorf("make a claim on node %s: %w", name, err)
		}
		claim.Status = allocated(name, g)
		if _, err := claims.UpdateStatus(ctx, claim, metav1.UpdateOptions{}); err != nil {
			return fmt.Errorf("allocate claim %s: %w", claim.Name, err)
		}
	}
	return nil
}

func node(name string) *corev1.Node {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{corev1.LabelHostname: name}}}
	n.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "192.0.2.1"},
		{Type: corev1.NodeHostName, Address: name}}
	for i := range imagesPerNode {
		n.Status.Images = append(n.Status.Images, corev1.ContainerImage{SizeBytes: 1 << 30, Names: []string{
			fmt.Sprintf("registry.example.com/some-team/some-image-%02d:v1.2.3", i),
			fmt.Sprintf("registry.example.com/some-team/some-image-%02d@sha256:%064d", i, i),
		}})
	}
	return n
}

// slice is what the driver publishes for eight GPUs in mode share; partly is whether
// a pod without a claim holds some of the first.
func slice(n *corev1.Node, partly bool) *resourceapi.ResourceSlice {
	pool := v1alpha1.PoolName(n.Name)
	machine := &gpu.Machine{DriverVersion: "570.124.06", CUDADriverVersion: "12.8"}
	for i := range gpusPerNode {
		machine.GPUs = append(machine.GPUs, gpu.GPU{
			Index: i, Minor: i, UUID: "GPU-" + uuid.NewString(), Model: "NVIDIA-A100-SXM4-80GB",
			ProductName: "NVIDIA A100-SXM4-80GB",
			Brand:       "NVIDIA", Architecture: "Ampere", ComputeCapability: "8.0", MemoryMiB: 81920,
			PCIBusID: fmt.Sprintf("0000:%02x:00.0", i+16), PCIeRoot: "pci0000:00", NUMANode: ptr.To(i / 4),
		})
	}
	options := devices.Options{Pool: pool, Mode: mode.Share, Slots: mode.DefaultSlots, Isolation: "none",
		IsolationLevel: "none"}
	if first := machine.GPUs[0]; partly {
		options.Room = map[string]gpu.Amount{first.UUID: {Units: first.MemoryUnits() - withoutClaim, Cores: 100,
			Shares: mode.DefaultSlots - 1}}
	}
	built := devices.Build(machine, options)
	return &resourceapi.ResourceSlice{
		ObjectMeta: metav1.ObjectMeta{
			Name: n.Name + "-bench",
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: n.Name, UID: n.UID,
				Controller: ptr.To(true)}},
		},
		Spec: resourceapi.ResourceSliceSpec{
			Driver: v1alpha1.DriverName, NodeName: &n.Name, Devices: built.Pools[pool].Slices[0].Devices,
			Pool: resourceapi.ResourcePool{Name: pool, Generation: 1, ResourceSliceCount: 1},
		},
	}
}

func tenGi() resource.Quantity { return *resource.NewQuantity(10*devices.GiB, resource.BinarySI) }

func claim(node string, g int) *resourceapi.ResourceClaim {
	return &resourceapi.ResourceClaim{
		ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("%s-%d", node, g)},
		Spec: resourceapi.ResourceClaimSpec{Devices: resourceapi.DeviceClaim{Requests: []resourceapi.DeviceRequest{{
			Name: "gpu", Exactly: &resourceapi.ExactDeviceRequest{
				DeviceClassName: "share.gpu.aliyun.com",
				Capacity: &resourceapi.CapacityRequirements{
					Requests: map[resourceapi.QualifiedName]resource.Quantity{v1alpha1.CapMemory: tenGi()}},
			},
		}}}},
	}
}

// allocated is what the scheduler writes into a claim.
func allocated(node string, g int) resourceapi.ResourceClaimStatus {
	return resourceapi.ResourceClaimStatus{Allocation: &resourceapi.AllocationResult{
		Devices: resourceapi.DeviceAllocationResult{Results: []resourceapi.DeviceRequestAllocationResult{{
			Request: "gpu", Driver: v1alpha1.DriverName, Pool: v1alpha1.PoolName(node),
			Device:  devices.DeviceName(g, mode.Share),
			ShareID: ptr.To(types.UID(uuid.NewString())),
			ConsumedCapacity: map[resourceapi.QualifiedName]resource.Quantity{v1alpha1.CapMemory: tenGi(),
				v1alpha1.CapSlots: resource.MustParse("1"), v1alpha1.CapCores: resource.MustParse("0")},
		}}},
		NodeSelector: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
			MatchFields: []corev1.NodeSelectorRequirement{
				{Key: metav1.ObjectNameField, Operator: corev1.NodeSelectorOpIn, Values: []string{node}}},
		}}},
	}}
}
