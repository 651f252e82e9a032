// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	"k8s.io/apimachinery/pkg/util/uuid"
	drapb "k8s.io/kubelet/pkg/apis/dra/v1"
	"k8s.io/utils/ptr"

	"github.com/gpushare/dra-driver-gpushare/pkg/apis/ack"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/devices"
	"github.com/gpushare/dra-driver-gpushare/pkg/mode"
	"github.com/gpushare/dra-driver-gpushare/tests/harness"
)

const (
	namespace = "bench"
	// request is the name of the one request of each claim.
	request = "gpu"
	// gpus is how many GPUs each driver publishes.
	gpus = 8
	// podsOnNode is how many pods there are on socketNode.
	podsOnNode = 40
)

// makeObjects makes what the contenders and their pods need.
func (b *bench) makeObjects(ctx context.Context) error {
	templates := map[string]resourceapi.ResourceClaimSpec{}
	for _, c := range b.contenders {
		templates[c.name] = harness.Requests(c.request)
	}
	if err := b.Install(ctx, namespace, templates); err != nil {
		return err
	}
	var errs []error
	for _, name := range []string{socketNode, nvidiaNode, beforeNode} {
		_, err := b.Client.CoreV1().Nodes().Create(ctx, &corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{ack.NodeLabelSchedule: string(mode.Share)}},
			Spec:       corev1.NodeSpec{Unschedulable: true},
		}, metav1.CreateOptions{})
		errs = append(errs, err)
	}
	_, err := b.Client.ResourceV1().DeviceClasses().Create(ctx, &resourceapi.DeviceClass{
		ObjectMeta: metav1.ObjectMeta{Name: trivialDriver},
		Spec: resourceapi.DeviceClassSpec{Selectors: []resourceapi.DeviceSelector{
			{CEL: &resourceapi.CELDeviceSelector{Expression: fmt.Sprintf("device.driver == %q", trivialDriver)}},
		}},
	}, metav1.CreateOptions{})
	errs = append(errs, err)
	// A driver that looks at the pods of its node has some to look at.
	for i := range podsOnNode {
		pod := harness.Pod(fmt.Sprintf("on-%s-%d", socketNode, i), socketNode)
		pod.Spec.NodeName, pod.Spec.Tolerations = socketNode, []corev1.Toleration{{Operator: corev1.TolerationOpExists}}
		_, err := b.Client.CoreV1().Pods(namespace).Create(ctx, pod, metav1.CreateOptions{})
		errs = append(errs, err)
	}
	if err := utilerrors.FilterOut(utilerrors.NewAggregate(errs), apierrors.IsAlreadyExists); err != nil {
		return fmt.Errorf("make the benchmark's objects: %w", err)
	}
	for _, c := range b.contenders {
		if err := b.makeClaims(ctx, c); err != nil {
			return err
		}
	}
	return nil
}

// makeClaims makes a driver's claims, already allocated and spread over the GPUs.
func (b *bench) makeClaims(ctx context.Context, of *contender) error {
	for i := range of.claimCount {
		c, err := b.Client.ResourceV1().ResourceClaims(namespace).Create(ctx, &resourceapi.ResourceClaim{
			ObjectMeta: metav1.ObjectMeta{GenerateName: of.name + "-"}, Spec: harness.Requests(of.request),
		}, metav1.CreateOptions{})
		if err != nil {
			return fmt.Errorf("make a claim: %w", err)
		}
		c.Status.Allocation = &resourceapi.AllocationResult{Devices: resourceapi.DeviceAllocationResult{
			Results: []resourceapi.DeviceRequestAllocationResult{of.device(i % gpus)},
		}}
		if _, err := b.Client.ResourceV1().ResourceClaims(namespace).UpdateStatus(ctx, c,
			metav1.UpdateOptions{}); err != nil {
			return fmt.Errorf("allocate claim %s: %w", c.Name, err)
		}
		of.claims = append(of.claims, &drapb.Claim{Namespace: c.Namespace, Name: c.Name, Uid: string(c.UID)})
	}
	return nil
}

// ofClass returns a request for a device of a class.
func ofClass(name string) resourceapi.DeviceRequest {
	return resourceapi.DeviceRequest{Name: request, Exactly: &resourceapi.ExactDeviceRequest{DeviceClassName: name}}
}

// shareOf returns what the scheduler writes for a share of 1Gi of a node's GPU.
func shareOf(node string, gpu int) resourceapi.DeviceRequestAllocationResult {
	return resourceapi.DeviceRequestAllocationResult{
		Request: request, Driver: v1alpha1.DriverName, Pool: v1alpha1.PoolName(node),
		Device: devices.DeviceName(gpu, mode.Share), ShareID: ptr.To(uuid.NewUUID()),
		ConsumedCapacity: map[resourceapi.QualifiedName]resource.Quantity{
			v1alpha1.CapMemory: resource.MustParse("1Gi"), v1alpha1.CapCores: resource.MustParse("0"),
			v1alpha1.CapSlots: resource.MustParse("1"),
		},
	}
}

// whole returns what the scheduler writes for a device that the driver gives out whole.
func whole(driver, pool, prefix string) func(i int) resourceapi.DeviceRequestAllocationResult {
	return func(i int) resourceapi.DeviceRequestAllocationResult {
		return resourceapi.DeviceRequestAllocationResult{Request: request, Driver: driver, Pool: pool,
			Device: fmt.Sprint(prefix, i)}
	}
}
