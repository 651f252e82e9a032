// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/internal/statefile"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/ack"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/state"
	"github.com/gpushare/dra-driver-gpushare/tests/harness"
)

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

// An annotation may have 256 KiB. What is said of it on the node stays short.
func TestLongAnnotationsMakeNoLongEvents(t *testing.T) {
	t.Parallel()
	cluster.Whole(t, "old")
	const node = "old"
	old := oldNamespace(t)
	tenant := old.Tenant(t)
	offersMemory(t, node, "15 15 15 15")
	began := time.Now()
	stop := cluster.DevicePlugin(t, node, "aliyun.com/gpu-mem", 48)
	cluster.WaitNodeEvent(t, node, began, "GPUModeNotServed", "a device plugin serves aliyun.com/gpu-mem here")
	pod := harness.Bound(harness.Asking("mem 6"), "long", node, ack.AnnotationMemory, strings.Repeat("x\n", 125<<10))
	runOld(t, old, pod)
	stop()
	cluster.WaitNodeEvent(t, node, began, "GPUCardsOfPodsUnknown", old.Name+"/long")
	if err := tenant.CoreV1().Pods(old.Name).Delete(t.Context(), "long", metav1.DeleteOptions{}); err != nil {
		t.Error(err)
	}

	const most = 4096 // of a whole Event; its message has 1024 at most
	events, err := cluster.Client.CoreV1().Events(metav1.NamespaceDefault).List(t.Context(), metav1.ListOptions{
		FieldSelector: "involvedObject.kind=Node,involvedObject.name=" + node,
	})
	expect.NoError(t, err)
	for _, event := range events.Items {
		encoded, err := json.Marshal(event)
		if err != nil || len(encoded) > most || strings.Contains(event.Message, "\n") {
			t.Errorf("Event %s of the node has %d bytes: %.200q: %v", event.Reason, len(encoded), event.Message, err)
		}
	}
	lines, err := cluster.PluginLog(t.Context(), node, metav1.NewTime(began))
	expect.NoError(t, err)
	for _, line := range lines {
		if len(line) > 4*most {
			t.Errorf("a line of the plugin's log has %d bytes: %.200q", len(line), line)
		}
	}
	offersMemory(t, node, "15 15 15 15")
}

// A claim that tolerates everything is allocated from a node that waits to change its
// mode. It is not prepared, and holds nothing up, also where something makes the pod again.
func TestToleratingClaimsDoNotHoldAModeSwitchUp(t *testing.T) {
	t.Parallel()
	cluster.Whole(t, "switch")
	const node = "switch"
	setMode := cluster.Label(t, node, modeLabel)
	cluster.Publishes(t, node, "gpu-0-share")
	first, ns := cluster.Namespace(t), cluster.Namespace(t)
	tenant := ns.Tenant(t)
	first.Template(t, "one", harness.Requests(harness.Share("gpu", "1Gi")))
	first.Run(t, harness.Pod("before", node, harness.FromTemplate("one")))
	began := time.Now()
	setMode("default")
	cluster.WaitNodeEvent(t, node, began, "GPUModeSwitchWaiting", "before")
	checkpoint := statefile.File[state.Node]{
		Path: cluster.NodeFile(node, "var/lib/kubelet/plugins/gpu.aliyun.com/node.json")}
	harness.Eventually(t, "the node to have been closed for long enough", func(ctx context.Context) error {
		if kept, _, err := checkpoint.Load(); err != nil || !kept.Closed {
			return errors.Join(errors.New("it takes claims yet"), err)
		}
		return nil
	})

	tolerating := harness.Share("gpu", "1Gi")
	tolerating.Exactly.Tolerations = everythingTolerated()
	template := templateOf("tolerating", harness.Requests(tolerating))
	harness.Make(t, tenant.ResourceV1().ResourceClaimTemplates(ns.Name), template)
	pod := harness.Pod("during", node, harness.FromTemplate("tolerating"))
	harness.Make(t, tenant.CoreV1().Pods(ns.Name), pod)
	ns.WaitPodEvent(t, "during", failedPrepare, "takes no further claims, whatever they tolerate")
	// Nor is it by being tried again and again.
	harness.Eventually(t, "the controller to have the kubelet try again", func(ctx context.Context) error {
		return syncedAtLeast(ctx, ns, "during", 2)
	})
	first.Delete(t, "before")
	cluster.Publishes(t, node, "gpu-0")
	if got := ns.Get(t, "during"); got.Status.Phase != corev1.PodPending {
		t.Errorf("the pod that tolerates everything is %v", got.Status.Phase)
	}
}
