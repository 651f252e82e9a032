// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/tests/harness"
)

// The cluster autoscaler drains a node: it evicts all pods, those of DaemonSets too, unless an
// annotation says that they are to stay. A pod that ends slowly needs the driver until its end.
func TestNodeIsDrainedByTheClusterAutoscaler(t *testing.T) {
	t.Parallel()
	const node = "modes"
	cluster.Whole(t, node)
	ns := cluster.Namespace(t)
	ns.Template(t, "one", harness.Requests(harness.Capped("mps", 0, "memory", "1Gi")))
	ns.Run(t, harness.Pod("slow", node, harness.FromTemplate("one"), stopsSlowly(10)))
	claim := ns.ClaimOf(t, "slow").Name
	before := driverPods(t, node)

	pods, err := cluster.Client.CoreV1().Pods("").List(t.Context(),
		metav1.ListOptions{FieldSelector: "spec.nodeName=" + node})
	expect.NoError(t, err)
	for _, pod := range pods.Items {
		if pod.Annotations["cluster-autoscaler.kubernetes.io/enable-ds-eviction"] == "false" {
			continue
		}
		if err := cluster.Client.CoreV1().Pods(pod.Namespace).EvictV1(t.Context(), &policyv1.Eviction{
			ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name}}); err != nil {
			t.Fatalf("evict %s/%s: %v", pod.Namespace, pod.Name, err)
		}
	}
	harness.Eventually(t, "the pod and its claim to be gone", func(ctx context.Context) error {
		_, podErr := ns.Client.CoreV1().Pods(ns.Name).Get(ctx, "slow", metav1.GetOptions{})
		_, claimErr := ns.Client.ResourceV1().ResourceClaims(ns.Name).Get(ctx, claim, metav1.GetOptions{})
		if apierrors.IsNotFound(podErr) && apierrors.IsNotFound(claimErr) {
			return nil
		}
		return errors.Join(errors.New("they are not"), podErr, claimErr)
	})
	expect.Equal(t, before, driverPods(t, node), "pods of the driver, of which none is evicted")
	events, err := ns.Client.CoreV1().Events(ns.Name).List(t.Context(), metav1.ListOptions{})
	expect.NoError(t, err)
	for _, event := range events.Items {
		if strings.Contains(event.Message, "not registered") {
			t.Errorf("the pod's end met %s: %s", event.Reason, event.Message)
		}
	}
}

// driverPods are the pods of the driver on a node, and whether they have ended.
func driverPods(t *testing.T, node string) []string {
	t.Helper()
	list, err := cluster.Client.CoreV1().Pods(harness.PluginNamespace).List(t.Context(), metav1.ListOptions{
		LabelSelector: "app.kubernetes.io/component in (gpu-kubelet-plugin, gpu-mps-supervisor)",
		FieldSelector: "spec.nodeName=" + node,
	})
	expect.NoError(t, err)
	var pods []string
	for _, pod := range list.Items {
		if pod.Status.Phase == corev1.PodRunning {
			pods = append(pods, fmt.Sprintf("%s ending: %t", pod.Name, pod.DeletionTimestamp != nil))
		}
	}
	return pods
}
