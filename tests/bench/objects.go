// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"

	"github.com/google/uuid"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	drapb "k8s.io/kubelet/pkg/apis/dra/v1"
	"k8s.io/utils/ptr"

	"github.com/gpushare/dra-driver-gpushare/pkg/apis/ack"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/devices"
	"github.com/gpushare/dra-driver-gpushare/pkg/mode"
	"github.com/gpushare/dra-driver-gpushare/tests/bench/internal/pods"
)

const (
	namespace = "bench"
	// socketNode is a Node without a kubelet. The drivers that the benchmark
	// starts itself believe to be on it; NVIDIA's on another one: beside a driver with the same
	// GPUs, and no kubelet to say who has them, this one would grant none.
	socketNode = "bench-socket"
	nvidiaNode = "bench-nvidia"
	// trivialDriver is the name in tests/bench/trivial.
	trivialDriver = "trivial.bench.test"
	// nvidiaDriver is NVIDIA's, and the name of its DeviceClass.
	nvidiaDriver = "gpu.nvidia.com"
	request      = "device"
	// GPUs is how many each driver publishes.
	newGPUs = 8
	// podsOnNode is how many pods there are on socketNode.
	podsOnNode = 40
)

// The claim templates, one for each driver.
const (
	gpushareTemplate = "gpushare"
	trivialTemplate  = "trivial"
	nvidiaTemplate   = "nvidia"
)

func (b *bench) makeObjects(ctx context.Context) error {
	_, errNamespace := b.client.CoreV1().Namespaces().Create(ctx,
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}, metav1.CreateOptions{})
	errs := []error{errNamespace}
	for _, name := range []string{socketNode, nvidiaNode} {
		_, err := b.client.CoreV1().Nodes().Create(ctx, &corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{ack.NodeLabelSchedule: string(mode.Share)}},
			Spec:       corev1.NodeSpec{Unschedulable: true},
		}, metav1.CreateOptions{})
		errs = append(errs, err)
	}
	_, err := b.client.ResourceV1().DeviceClasses().Create(ctx, &resourceapi.DeviceClass{
		ObjectMeta: metav1.ObjectMeta{Name: trivialDriver},
		Spec: resourceapi.DeviceClassSpec{Selectors: []resourceapi.DeviceSelector{
			{CEL: &resourceapi.CELDeviceSelector{Expression: fmt.Sprintf("device.driver == %q", trivialDriver)}},
		}},
	}, metav1.CreateOptions{})
	errs = append(errs, err)
	// A driver that looks at the pods of its node has some to look at.
	for i := range podsOnNode {
		_, err := b.client.CoreV1().Pods(namespace).Create(ctx, &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("on-%s-%d", socketNode, i)},
			Spec: corev1.PodSpec{
				NodeName: socketNode, Tolerations: []corev1.Toleration{{Operator: corev1.TolerationOpExists}},
				Containers: []corev1.Container{{Name: "main", Image: pods.Image}},
			},
		}, metav1.CreateOptions{})
		errs = append(errs, err)
	}
	for name, spec := range map[string]resourceapi.ResourceClaimSpec{
		gpushareTemplate: claimSpec("share."+v1alpha1.DriverName, shareRequest()),
		trivialTemplate:  claimSpec(trivialDriver, nil),
		nvidiaTemplate:   claimSpec(nvidiaDriver, nil),
	} {
		_, err := b.client.ResourceV1().ResourceClaimTemplates(namespace).Create(ctx, &resourceapi.ResourceClaimTemplate{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec:       resourceapi.ResourceClaimTemplateSpec{Spec: spec},
		}, metav1.CreateOptions{})
		errs = append(errs, err)
	}
	for _, err := range errs {
		if err != nil && !apierrors.IsAlreadyExists(err) {
			return fmt.Errorf("make the benchmark's objects: %w", err)
		}
	}
	return nil
}

func shareRequest() *resourceapi.CapacityRequirements {
	return &resourceapi.CapacityRequirements{Requests: map[resourceapi.QualifiedName]resource.Quantity{
		v1alpha1.CapMemory: resource.MustParse("1Gi")}}
}

func claimSpec(class string, capacity *resourceapi.CapacityRequirements) resourceapi.ResourceClaimSpec {
	return resourceapi.ResourceClaimSpec{Devices: resourceapi.DeviceClaim{Requests: []resourceapi.DeviceRequest{{
		Name: request, Exactly: &resourceapi.ExactDeviceRequest{DeviceClassName: class, Capacity: capacity},
	}}}}
}

// shareOfGPU is what the scheduler writes for a share of 1Gi on GPU i.
func shareOfGPU(i int) resourceapi.DeviceRequestAllocationResult {
	return resourceapi.DeviceRequestAllocationResult{
		Request: request, Driver: v1alpha1.DriverName, Pool: v1alpha1.PoolName(socketNode),
		Device: devices.DeviceName(i, mode.Share), ShareID: ptr.To(types.UID(uuid.NewString())),
		ConsumedCapacity: map[resourceapi.QualifiedName]resource.Quantity{
			v1alpha1.CapMemory: resource.MustParse("1Gi"), v1alpha1.CapCores: resource.MustParse("0"),
			v1alpha1.CapSlots: resource.MustParse("1"),
		},
	}
}

// trivialDevice is what the scheduler writes for a device of the trivial driver.
func trivialDevice(i int) resourceapi.DeviceRequestAllocationResult {
	return resourceapi.DeviceRequestAllocationResult{
		Request: request, Driver: trivialDriver, Pool: socketNode, Device: fmt.Sprintf("device-%d", i),
	}
}

// nvidiaDevice is what the scheduler writes for a GPU of NVIDIA's driver.
func nvidiaDevice(i int) resourceapi.DeviceRequestAllocationResult {
	return resourceapi.DeviceRequestAllocationResult{
		Request: request, Driver: nvidiaDriver, Pool: nvidiaNode, Device: fmt.Sprintf("gpu-%d", i),
	}
}

// makeClaims makes claims that are allocated already, spread over the GPUs,
// and returns them as the kubelet names them to a driver.
func (b *bench) makeClaims(ctx context.Context, prefix string, count int, spec resourceapi.ResourceClaimSpec,
	result func(g int) resourceapi.DeviceRequestAllocationResult) ([]*drapb.Claim, error) {
	claims := make([]*drapb.Claim, 0, count)
	for i := range count {
		c, err := b.client.ResourceV1().ResourceClaims(namespace).Create(ctx, &resourceapi.ResourceClaim{
			ObjectMeta: metav1.ObjectMeta{GenerateName: prefix + "-"}, Spec: spec,
		}, metav1.CreateOptions{})
		if err != nil {
			return nil, fmt.Errorf("make a claim: %w", err)
		}
		c.Status.Allocation = &resourceapi.AllocationResult{Devices: resourceapi.DeviceAllocationResult{
			Results: []resourceapi.DeviceRequestAllocationResult{result(i % newGPUs)},
		}}
		if _, err := b.client.ResourceV1().ResourceClaims(namespace).UpdateStatus(ctx, c,
			metav1.UpdateOptions{}); err != nil {
			return nil, fmt.Errorf("allocate claim %s: %w", c.Name, err)
		}
		claims = append(claims, &drapb.Claim{Namespace: c.Namespace, Name: c.Name, Uid: string(c.UID)})
	}
	return claims, nil
}
