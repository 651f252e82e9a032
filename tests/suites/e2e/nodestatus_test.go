// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"fmt"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
)

func TestNodesShowTheirAmounts(t *testing.T) {
	t.Parallel()
	for _, node := range []string{"dynamic", "fill", "modes"} {
		cluster.Share(t, node)
	}
	cluster.Whole(t, "switch")
	for _, node := range []string{"topo", "whole"} {
		cluster.Share(t, node)
	}
	for node, want := range map[string]string{
		"fill":    "60 4 0 0",
		"modes":   "60 4 0 0",
		"whole":   "0 0 0 0",
		"topo":    "0 0 0 8",
		"dynamic": "640 8 800 0",
	} {
		cluster.ShowsAmounts(t, node, want)
	}
	setMode := cluster.Label(t, "switch", modeLabel)
	setMode("share")
	cluster.ShowsAmounts(t, "switch", "15 1 0 0")
	cluster.Publishes(t, "switch", "gpu-0-share")
	setMode("core_mem")
	cluster.ShowsAmounts(t, "switch", "15 1 100 0")
	setMode("default")
	cluster.ShowsAmounts(t, "switch", "0 0 0 0")
	cluster.Publishes(t, "switch", "gpu-0")
}

// statusAsKubelet changes an amount as the node's kubelet does.
func statusAsKubelet(t *testing.T, node, amount string) {
	t.Helper()
	patch := fmt.Sprintf(`{"status":{"capacity":{"aliyun.com/gpu-mem":%q},"allocatable":{"aliyun.com/gpu-mem":%q}}}`,
		amount, amount)
	_, err := cluster.Client.CoreV1().Nodes().Patch(t.Context(), node, types.StrategicMergePatchType, []byte(patch),
		metav1.PatchOptions{FieldManager: "kubelet"}, "status")
	expect.NoError(t, err)
}

func TestDevicePluginsAreToldFromTheAmountsShown(t *testing.T) {
	t.Parallel()
	cluster.Whole(t, "old")
	cluster.ShowsAmounts(t, "old", "60 4 0 0")

	// What a kubelet zeroes when it registers again, is written again; the GPUs stay.
	statusAsKubelet(t, "old", "0")
	cluster.ShowsAmounts(t, "old", "60 4 0 0")
	cluster.Tool(t, "node", "restart-kubelet", "old")
	cluster.ShowsAmounts(t, "old", "60 4 0 0")
	cluster.Publishes(t, "old", "gpu-0-share", "gpu-1-share", "gpu-2-share", "gpu-3-share")

	began := time.Now()
	stop := cluster.DevicePlugin(t, "old", "aliyun.com/gpu-mem", 7)
	cluster.WaitNodeEvent(t, "old", began, "GPUAmountsNotOurs", "aliyun.com/gpu-mem is 7, written by kubelet")
	cluster.WaitNodeEvent(t, "old", began, "GPUModeNotServed", "a device plugin serves aliyun.com/gpu-mem here")
	cluster.Publishes(t, "old")
	cluster.ShowsAmounts(t, "old", "7 4 0 0")

	stop()
	cluster.Publishes(t, "old", "gpu-0-share", "gpu-1-share", "gpu-2-share", "gpu-3-share")
	cluster.ShowsAmounts(t, "old", "60 4 0 0")
}
