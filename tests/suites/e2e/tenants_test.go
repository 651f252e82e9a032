// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/gpushare/dra-driver-gpushare/pkg/apis/ack"
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

// What a pod of a device plugin was first seen with counts, whatever its owner makes of
// its annotations afterwards, and whichever plugin of the driver looks at them.
func TestTenantsEditsOfAnnotationsChangeNothing(t *testing.T) {
	t.Parallel()
	cluster.Whole(t, "old")
	const node = "old"
	cluster.FreshPlugin(t, node)
	old, ns := oldNamespace(t), cluster.Namespace(t)
	tenant := old.Tenant(t)
	// What is the same as at the end of another test is not said again.
	offersMemory(t, node, "15 15 15 15")
	began := time.Now()
	stop := cluster.DevicePlugin(t, node, "aliyun.com/gpu-mem", 48)
	cluster.WaitNodeEvent(t, node, began, "GPUModeNotServed", "a device plugin serves aliyun.com/gpu-mem here")
	runOld(t, old,
		harness.Bound(harness.Asking("mem 6"), "moved", node, ack.AnnotationMemory, `{"0":{"0":6}}`),
		harness.Bound(harness.Asking("mem 5"), "removed", node, ack.AnnotationV1Index, "1"),
	)
	stop()
	offersMemory(t, node, "9 10 15 15")

	for pod, annotations := range map[string]string{
		"moved":   `{"` + ack.AnnotationMemory + `":"{\"0\":{\"3\":1}}"}`,
		"removed": `{"` + ack.AnnotationV1Index + `":null}`,
	} {
		harness.Patch(t, tenant.CoreV1().Pods(old.Name), pod, types.MergePatchType,
			`{"metadata":{"annotations":`+annotations+`}}`)
	}
	// It fills the node: were anything counted otherwise, one of these would not fit, or
	// lie elsewhere.
	for i, gib := range []string{"9", "10", "15", "15"} {
		pod := harness.GoingTo(harness.Asking("mem "+gib), fmt.Sprintf("fill-%d", i), node)
		ns.Run(t, pod)
		if grants := ns.Granted(t, pod.Name); grants[0].GPU.Index != int64(i) {
			t.Errorf("pod %s of %s GiB is on GPU %d, want %d", pod.Name, gib, grants[0].GPU.Index, i)
		}
	}
	ns.Delete(t, "fill-0", "fill-1", "fill-2", "fill-3")
	cluster.KillPlugin(t, node)()
	offersMemory(t, node, "9 10 15 15")
	again, beside := harness.Asking("mem 10"), harness.Asking("mem 9")
	ns.Run(t, harness.GoingTo(again, "again", node), harness.GoingTo(beside, "beside", node))
	for pod, want := range map[string]int64{"again": 1, "beside": 0} {
		if grants := ns.Granted(t, pod); grants[0].GPU.Index != want {
			t.Errorf("after another start of the plugin pod %s is on GPU %d, want %d", pod, grants[0].GPU.Index, want)
		}
	}
	ns.Delete(t, "again", "beside")
}
