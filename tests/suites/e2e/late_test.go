// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/gpushare/dra-driver-gpushare/tests/harness"
)

// A scheduler's allocation can reach the API server long after the node has
// changed its mode. Here the test is the scheduler.
func TestAllocationThatComesAfterAChangeOfTheMode(t *testing.T) {
	t.Parallel()
	cluster.Whole(t, "switch")
	setMode := cluster.Label(t, "switch", modeLabel)
	ns := cluster.Namespace(t)
	ns.Template(t, "card", harness.Requests(harness.Exclusive("gpu", 1)))
	setMode("default")
	cluster.Publishes(t, "switch", "gpu-0")

	ns.Claim(t, "late", harness.Requests(harness.Share("gpu", "3Gi")))
	ns.Create(t, harness.Pod("late", "switch", harness.FromClaim("late"),
		func(pod *corev1.Pod) { pod.Spec.SchedulerName = "this-test" }))
	schedule(t, ns, "late", "switch", "late", resourceapi.DeviceRequestAllocationResult{
		Request: "gpu", Driver: "gpu.aliyun.com", Pool: "switch/gpu", Device: "gpu-0-share",
		ShareID: ptr.To(types.UID("5c1fd4c8-7f2e-4b51-9a31-0c6f0d3a5e11")),
		ConsumedCapacity: map[resourceapi.QualifiedName]resource.Quantity{
			"memory": resource.MustParse("3Gi"), "slots": resource.MustParse("1"),
		},
	})
	ns.WaitPodEvent(t, "late", "FailedPrepareDynamicResources", "the node has changed to mode exclusive since: delete "+
		"the pod")

	// It holds nothing: the GPU is for whoever is promised it now.
	ns.Run(t, harness.Pod("whole", "switch", harness.FromTemplate("card")))
	ns.SeesItsGPUs(t, "whole", "main", ns.Granted(t, "whole"))
}

// schedule allocates a claim for a pod and binds the pod, as a scheduler does.
func schedule(t *testing.T, ns *harness.Namespace, podName, node, claimName string,
	results ...resourceapi.DeviceRequestAllocationResult) {
	t.Helper()
	pods, claims := ns.Client.CoreV1().Pods(ns.Name), ns.Client.ResourceV1().ResourceClaims(ns.Name)
	pod, err := pods.Get(t.Context(), podName, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	claim, err := claims.Get(t.Context(), claimName, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	claim.Finalizers = append(claim.Finalizers, resourceapi.Finalizer)
	if claim, err = claims.Update(t.Context(), claim, metav1.UpdateOptions{}); err != nil {
		t.Fatalf("prepare to allocate claim %s: %v", claimName, err)
	}
	claim.Status.Allocation = &resourceapi.AllocationResult{Devices: resourceapi.DeviceAllocationResult{Results: results}}
	claim.Status.ReservedFor = []resourceapi.ResourceClaimConsumerReference{
		{Resource: "pods", Name: pod.Name, UID: pod.UID}}
	if _, err := claims.UpdateStatus(t.Context(), claim, metav1.UpdateOptions{}); err != nil {
		t.Fatalf("allocate claim %s: %v", claimName, err)
	}
	binding := &corev1.Binding{ObjectMeta: metav1.ObjectMeta{Name: pod.Name, UID: pod.UID},
		Target: corev1.ObjectReference{Kind: "Node", Name: node}}
	if err := pods.Bind(t.Context(), binding, metav1.CreateOptions{}); err != nil {
		t.Fatalf("bind pod %s: %v", podName, err)
	}
}
