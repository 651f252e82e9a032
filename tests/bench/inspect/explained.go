// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/util/retry"
	"k8s.io/utils/ptr"

	"github.com/gpushare/dra-driver-gpushare/deviceclasses"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
)

const (
	// waitingPod asks for more than is free of any GPU, runningPod has the first share.
	waitingPod = "waits"
	runningPod = "runs"
	// refusedWithin is how long the scheduler may take to look at all nodes.
	refusedWithin = 5 * time.Minute
)

// explained makes the two pods that are asked about.
func explained(ctx context.Context, client kubernetes.Interface) error {
	classes, err := deviceclasses.All()
	if err != nil {
		return err
	}
	for _, class := range classes {
		if _, err := client.ResourceV1().DeviceClasses().Create(ctx, class, metav1.CreateOptions{}); err != nil {
			return fmt.Errorf("make DeviceClass %s: %w", class.Name, err)
		}
	}
	wanted := claim(waitingPod, 0)
	capacity := wanted.Spec.Devices.Requests[0].Exactly.Capacity
	more := tenGi()
	more.Set(more.Value() * gpusPerNode)
	capacity.Requests[v1alpha1.CapMemory] = more
	if _, err := client.ResourceV1().ResourceClaims(namespace).Create(ctx, wanted, metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("make a claim that waits: %w", err)
	}
	if err := makeRunning(ctx, client); err != nil {
		return err
	}
	pods := client.CoreV1().Pods(namespace)
	if _, err := pods.Create(ctx, podOf(waitingPod, wanted.Name), metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("make a pod that waits: %w", err)
	}
	err = wait.PollUntilContextTimeout(ctx, time.Second, refusedWithin, true, func(ctx context.Context) (bool, error) {
		pod, err := pods.Get(ctx, waitingPod, metav1.GetOptions{})
		if err != nil {
			return false, err
		}
		for _, c := range pod.Status.Conditions {
			if c.Type == corev1.PodScheduled && c.Reason == corev1.PodReasonUnschedulable {
				return true, nil
			}
		}
		return false, nil
	})
	if err != nil {
		return fmt.Errorf("wait for the scheduler to refuse pod %s: %w", waitingPod, err)
	}
	return nil
}

// makeRunning makes a pod on the first node that uses the first claim.
func makeRunning(ctx context.Context, client kubernetes.Interface) error {
	claims, pods := client.ResourceV1().ResourceClaims(namespace), client.CoreV1().Pods(namespace)
	name := claim(nodeName(0), 0).Name
	pod := podOf(runningPod, name)
	pod.Spec.NodeName = nodeName(0)
	pod, err := pods.Create(ctx, pod, metav1.CreateOptions{})
	if err != nil {
		return fmt.Errorf("make a pod that runs: %w", err)
	}
	// The controller manager does so, too, where it is first.
	err = retry.RetryOnConflict(retry.DefaultRetry, func() error {
		used, err := claims.Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		used.Status.ReservedFor = []resourceapi.ResourceClaimConsumerReference{{Resource: "pods", Name: pod.Name,
			UID: pod.UID}}
		_, err = claims.UpdateStatus(ctx, used, metav1.UpdateOptions{})
		return err
	})
	if err != nil {
		return fmt.Errorf("reserve claim %s: %w", name, err)
	}
	pod.Status.Phase = corev1.PodRunning
	if _, err := pods.UpdateStatus(ctx, pod, metav1.UpdateOptions{}); err != nil {
		return fmt.Errorf("have pod %s run: %w", pod.Name, err)
	}
	return nil
}

// podOf is a pod that uses a claim. It tolerates that nothing runs on the nodes.
func podOf(name, claim string) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.PodSpec{
		AutomountServiceAccountToken: ptr.To(false),
		Tolerations:                  []corev1.Toleration{{Operator: corev1.TolerationOpExists}},
		ResourceClaims:               []corev1.PodResourceClaim{{Name: "gpu", ResourceClaimName: &claim}},
		Containers: []corev1.Container{{Name: "main", Image: "registry.example.com/some-team/some-image:v1.2.3",
			Resources: corev1.ResourceRequirements{Claims: []corev1.ResourceClaim{{Name: "gpu"}}}}},
	}}
}
