// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"testing"

	resourceapi "k8s.io/api/resource/v1"

	"github.com/gpushare/dra-driver-gpushare/tests/harness"
)

// A claim that cannot be served says why where the user looks for it.
func TestPodsAreToldWhyTheyWait(t *testing.T) {
	t.Parallel()
	for _, node := range []string{"share", topoNode, "whole"} {
		cluster.Share(t, node)
	}
	ns := cluster.Namespace(t)
	noSuchMode := ns.DeviceClass(t, resourceapi.DeviceClassSpec{Selectors: []resourceapi.DeviceSelector{{
		CEL: &resourceapi.CELDeviceSelector{
			Expression: `device.driver == "gpu.aliyun.com" && device.attributes["gpu.aliyun.com"].mode == "auction"`,
		}}}})
	tests := []struct {
		pod, node string
		request   resourceapi.DeviceRequest
		want      []string
	}{
		{"too-many", topoNode, harness.Linked("cards", 1, 16), []string{
			"request cards: 16 GPUs of class single.topology.gpu.aliyun.com asked for; no node has more than 8 " +
				"that match (node topo)",
		}},
		{"three-linked", topoNode, harness.Matching(harness.OfClass("topology"),
			`device.attributes["gpu.aliyun.com"].gpuCount == 3`), []string{
			`request gpu: no device matches the selector device.attributes["gpu.aliyun.com"].gpuCount == 3; class ` +
				`topology.gpu.aliyun.com has `,
			"gpuCount 1, 2, 4, 8",
		}},
		{"too-large", "share", harness.Share("gpu", "200Gi"), []string{
			"request gpu: 200Gi of memory asked for; the largest GPU that matches has ",
		}},
		{"no-such-mode", "share", harness.Exactly(&resourceapi.ExactDeviceRequest{DeviceClassName: noSuchMode}), []string{
			"request gpu: no node offers GPUs of class " + noSuchMode + "; there are GPUs in the modes ",
		}},
		{"no-such-class", "share", harness.OfClass("share.no-such-model"), []string{
			"request gpu: DeviceClass share.no-such-model.gpu.aliyun.com does not exist (kubectl get deviceclasses lists " +
				"those that do); there are GPUs in the modes ",
		}},
		{"typo", "share", harness.Matching(harness.Share("gpu", "1Gi"),
			`device.attributes["gpu.aliyun.com"].memoryMB > 1000`), []string{
			`request gpu: the selector device.attributes["gpu.aliyun.com"].memoryMB > 1000 cannot be evaluated for device ` +
				`gpu-0-share of node share (no such key: memoryMB)`,
		}},
		{"elsewhere", "whole", harness.Linked("cards", 1, 8), []string{
			"request cards: the GPUs that match are on nodes that the pod's nodeSelector, its affinity or its other claims " +
				"exclude: ", topoNode,
		}},
	}
	for _, test := range tests {
		ns.Template(t, test.pod, harness.Requests(test.request))
		ns.Create(t, harness.Pod(test.pod, test.node, harness.FromTemplate(test.pod)))
	}
	for _, test := range tests {
		t.Run(test.pod, func(t *testing.T) { ns.IsTold(t, test.pod, test.want...) })
	}
}
