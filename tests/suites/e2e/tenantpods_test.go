// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/tests/harness"
)

// blocker keeps a pod in Terminating.
const blocker = "e2e.gpu.aliyun.com/blocker"

// namesNode is a pod that asks for a whole GPU and names its node.
func namesNode(name, node string, options ...func(*corev1.Pod)) *corev1.Pod {
	pod := harness.Bound(harness.Asking("nvidia.com/gpu 1"), name, node)
	for _, option := range options {
		option(pod)
	}
	return pod
}

func optsOut(p *corev1.Pod) { metav1.SetMetaDataLabel(&p.ObjectMeta, v1alpha1.LabelLegacy, "false") }

func claimsToBeStatic(p *corev1.Pod) {
	metav1.SetMetaDataAnnotation(&p.ObjectMeta, corev1.MirrorPodAnnotationKey, "x")
	p.Finalizers = []string{blocker}
}

func cannotStart(p *corev1.Pod) {
	p.Spec.Containers[0].Image = "localhost/there-is-no-such-image:latest"
}

func onlyBeforeStart(p *corev1.Pod) {
	before := p.Spec.Containers[0]
	before.Name, before.Args = "before", []string{"devices"}
	p.Spec.InitContainers = append(p.Spec.InitContainers, before)
	p.Spec.Containers[0].Resources.Limits = nil
}

// No pod that a tenant writes closes GPUs: not by what it says of itself, and not where
// the policy lets it through.
func TestTenantsPodsCloseNoGPUs(t *testing.T) {
	t.Parallel()
	cluster.Whole(t, "old")
	const node = "old"
	ns, left := cluster.Namespace(t), cluster.Namespace(t, optedOut)
	tenant, tenantLeft := ns.Tenant(t), left.Tenant(t)
	t.Cleanup(func() {
		unblock(t, ns)
		unblock(t, left)
	})

	for _, pod := range []*corev1.Pod{
		namesNode("opted-out", node, optsOut),
		namesNode("static", node, claimsToBeStatic),
		namesNode("both", node, optsOut, claimsToBeStatic),
	} {
		_, err := tenant.CoreV1().Pods(ns.Name).Create(t.Context(), pod, metav1.CreateOptions{})
		if err == nil || !strings.Contains(err.Error(), "names its node in spec.nodeName") ||
			strings.Contains(err.Error(), v1alpha1.LabelLegacy) {
			t.Errorf("pod %s: %v, want it refused, without the way round", pod.Name, err)
		}
	}
	for _, pod := range []*corev1.Pod{
		namesNode("runs", node),
		namesNode("pending", node, cannotStart),
		namesNode("starting", node, onlyBeforeStart),
		namesNode("terminating", node, claimsToBeStatic),
	} {
		harness.Make(t, tenantLeft.CoreV1().Pods(left.Name), pod)
	}
	left.WaitRunning(t, "runs")
	left.WaitRunning(t, "starting")
	if err := tenantLeft.CoreV1().Pods(left.Name).Delete(t.Context(), "terminating", metav1.DeleteOptions{}); err != nil {
		t.Errorf("delete the pod that stays: %v", err)
	}

	var fill []*corev1.Pod
	for i := range 4 {
		fill = append(fill, harness.GoingTo(harness.Asking("mem 15"), fmt.Sprintf("fill-%d", i), node))
	}
	ns.Run(t, fill...)
	offersMemory(t, node, "15 15 15 15")
	ns.Delete(t, podNames(fill)...)
}

// unblock takes the blocker off all pods of a namespace, so that they can go.
func unblock(t *testing.T, ns *harness.Namespace) {
	if err := withoutFinalizers(harness.Context(t), ns.Client, ns.Name); err != nil {
		t.Errorf("let the pods of namespace %s go: %v", ns.Name, err)
	}
}

func withoutFinalizers(ctx context.Context, client kubernetes.Interface, namespace string) error {
	pods, err := client.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	for i := range pods.Items {
		if len(pods.Items[i].Finalizers) == 0 {
			continue
		}
		patch := []byte(`{"metadata":{"finalizers":null}}`)
		if _, err := client.CoreV1().Pods(namespace).Patch(ctx, pods.Items[i].Name, types.MergePatchType, patch,
			metav1.PatchOptions{}); err != nil {
			return err
		}
	}
	return nil
}
