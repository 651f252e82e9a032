// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpushare/dra-driver-gpushare/tests/harness"
)

// NVIDIA's GPU Operator cannot replace the driver while a program has a GPU open: it says by a label that such
// programs are to leave the node, and when they may come back.
func TestDriverLeavesWhileTheGPUOperatorPausesClients(t *testing.T) {
	t.Parallel()
	const node, selector = "kill", "app.kubernetes.io/component in (gpu-kubelet-plugin, gpu-mps-supervisor)"
	cluster.Whole(t, node)
	ns := cluster.Namespace(t)
	ns.Run(t, harness.GoingTo(harness.Asking("mem 1"), "runs", node))
	client := cluster.Label(t, node, "nvidia.com/gpu.deploy.client")
	for _, paused := range []string{"paused-for-driver-upgrade", "paused-for-mig-change"} {
		client(paused)
		harness.Eventually(t, "the driver to leave node "+node, func(ctx context.Context) error {
			pods, err := cluster.Client.CoreV1().Pods(harness.PluginNamespace).List(ctx, metav1.ListOptions{
				LabelSelector: selector, FieldSelector: "spec.nodeName=" + node})
			if err == nil && len(pods.Items) > 0 {
				err = fmt.Errorf("%d of its pods are there", len(pods.Items))
			}
			return err
		})
		client("true")
		cluster.Plugin(t, node)
	}
	ns.WaitRunning(t, "runs")
	ns.Run(t, harness.GoingTo(harness.Asking("mem 1"), "next", node))
}
