// SPDX-License-Identifier: Apache-2.0

package explain_test

import (
	"testing"

	resourceapi "k8s.io/api/resource/v1"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
	"github.com/gpushare/dra-driver-gpushare/pkg/mode"
	"github.com/gpushare/dra-driver-gpushare/pkg/quota"
)

func TestExplanations(t *testing.T) {
	// A DGX-1, eight whole A100, four shared A10.
	three := func(t *testing.T) *site {
		return newSite(t).node("topo", "dgx1", mode.Topology).node("whole", "a100x8", mode.Exclusive).node("share", "a10x4",
			mode.Share)
	}
	for name, test := range map[string]struct {
		site     func(t *testing.T) *site
		node     string
		requests []resourceapi.DeviceRequest
		want     string
		busy     bool
	}{
		"more GPUs than a node has": {
			requests: []resourceapi.DeviceRequest{request("cards", topologyClass, attribute("gpuCount == 1"), count(16))},
			want: never + "request cards: 16 GPUs of class topology.gpu.aliyun.com asked for; no node has more than 8 " +
				"that match (node topo)",
		},
		"more GPUs than a node has, both ways": {
			requests: []resourceapi.DeviceRequest{firstOf("cards",
				request("linked", topologyClass, attribute("gpuCount == 16")),
				request("any", topologyClass, attribute("gpuCount == 1"), count(16)))},
			want: never + `request cards/linked: no device matches the selector device.attributes["gpu.aliyun.com"].gpuCount ` +
				`== 16;` +
				` class topology.gpu.aliyun.com has 53 devices, with gpuCount 1, 2, 4, 8.` +
				` request cards/any: 16 GPUs of class topology.gpu.aliyun.com asked for; no node has more than 8 ` +
				`that match (node topo)`,
		},
		"a set that there is none of": {
			requests: []resourceapi.DeviceRequest{request("linked", topologyClass, attribute("gpuCount == 3"))},
			want: never + `request linked: no device matches the selector device.attributes["gpu.aliyun.com"].gpuCount == 3;` +
				` class topology.gpu.aliyun.com has 53 devices, with gpuCount 1, 2, 4, 8`,
		},
		"a set that there is none of, or single GPUs": {
			requests: []resourceapi.DeviceRequest{firstOf("cards",
				request("linked", topologyClass, attribute("gpuCount == 3")),
				request("any", topologyClass, attribute("gpuCount == 1"), count(3)))},
			want: `request cards/linked: no device matches the selector device.attributes["gpu.aliyun.com"].gpuCount == 3;` +
				` class topology.gpu.aliyun.com has 53 devices, with gpuCount 1, 2, 4, 8.` +
				` request cards/any: the GPUs that match are all taken or too full: 8 GPUs on node topo`,
			busy: true,
		},
		"sets that overlap": {
			requests: []resourceapi.DeviceRequest{request("linked", topologyClass, attribute("gpuCount == 4"), count(3))},
			want:     never + "no node has all requested devices at once",
		},
		"more memory than a GPU has": {
			requests: []resourceapi.DeviceRequest{request("gpu", shareClass, amount("memory", "90Gi"))},
			want: never + "request gpu: 90Gi of memory asked for; the largest GPU that matches has 22Gi (node share, " +
				"NVIDIA-A10)",
		},
		"more memory than a GPU has, counted by a quota": {
			requests: quota.Counted([]resourceapi.DeviceRequest{request("gpu", shareClass, amount("memory", "90Gi"))}),
			want: never + "request gpu/share: 90Gi of memory asked for; the largest GPU that matches has 22Gi (node share, " +
				"NVIDIA-A10)",
		},
		"shares of more GPUs than there are, counted by a quota": {
			requests: quota.Counted([]resourceapi.DeviceRequest{
				request("gpu", shareClass, amount("memory", "1Gi"), count(90))}),
			want: never + "request gpu/share: 90 GPUs of class share.gpu.aliyun.com asked for; no node has more than 4 that " +
				"match (node share)",
		},
		// A card sold as one of 16 GB has less, and shares are whole GiB of that.
		"as much memory as the card's name says": {
			site:     func(t *testing.T) *site { return newSite(t).node("n", "t4x1", mode.CGPU) },
			requests: []resourceapi.DeviceRequest{request("gpu", "cgpu.gpu.aliyun.com", amount("memory", "16000Mi"))},
			want: never + "request gpu: 15.6Gi of memory asked for; the largest GPU that matches has 15Gi (node n, " +
				"Tesla-T4)",
		},
		"more memory than a whole GPU has": {
			requests: []resourceapi.DeviceRequest{request("gpu", wholeClass, amount("memory", "90Gi"))},
			want: never + "request gpu: 90Gi of memory asked for; the largest GPU that matches has 80Gi (node whole, " +
				"NVIDIA-A100-SXM4-80GB)",
		},
		"more shares than a GPU takes": {
			requests: []resourceapi.DeviceRequest{request("gpu", shareClass, amount("slots", "2"))},
			want:     never + "request gpu: 2 of slots asked for; a share takes one slot of its GPU",
		},
		"compute where none is granted": {
			requests: []resourceapi.DeviceRequest{request("gpu", shareClass, amount("cores", "25"))},
			want:     never + "request gpu: 25 of cores asked for; the GPUs that match give none (mode share)",
		},
		"a capacity that GPUs do not have": {
			requests: []resourceapi.DeviceRequest{request("gpu", shareClass, amount("memroy", "2Gi"))},
			want: never + "request gpu: 2Gi of memroy asked for; the GPUs that match have the capacities cores, " +
				"memory, slots",
		},
		// Devices name theirs without a domain, and the scheduler compares names as they are.
		"a capacity with the driver's domain": {
			requests: []resourceapi.DeviceRequest{request("gpu", shareClass, amount("gpu.aliyun.com/memory", "2Gi"))},
			want: never + "request gpu: 2Gi of gpu.aliyun.com/memory asked for; the GPUs that match have the " +
				"capacities cores, memory, slots",
		},
		"a mode that no node is in": {
			requests: []resourceapi.DeviceRequest{request("gpu", "mps.gpu.aliyun.com")},
			want: never + "request gpu: no node offers GPUs of class mps.gpu.aliyun.com; there are GPUs in the modes " +
				"exclusive, share, topology",
		},
		"a class that is not there": {
			requests: []resourceapi.DeviceRequest{request("gpu", "share.tesla-t5.gpu.aliyun.com")},
			want: "request gpu: DeviceClass share.tesla-t5.gpu.aliyun.com does not exist (kubectl get " +
				"deviceclasses lists those that do); there are GPUs in the modes exclusive, share, topology",
		},
		"one alternative whose class is not there": {
			requests: []resourceapi.DeviceRequest{firstOf("gpu", request("a", shareClass), request("b",
				"share.tesla-t5.gpu.aliyun.com"))},
			want: "request gpu/b: DeviceClass share.tesla-t5.gpu.aliyun.com does not exist, so no node can take the pod, " +
				"even for its other alternatives (kubectl get deviceclasses lists those that do);" +
				" there are GPUs in the modes exclusive, share, topology",
		},
		"one alternative whose class would be another driver's": {
			requests: []resourceapi.DeviceRequest{firstOf("gpu", request("a", "nic.example.org"), request("b", shareClass))},
			want: "request gpu/a: DeviceClass nic.example.org does not exist, so no node can take the pod, even for " +
				"its other alternatives (kubectl get deviceclasses lists those that do);" +
				" there are GPUs in the modes exclusive, share, topology",
		},
		"a class of NVIDIA's driver": {
			requests: []resourceapi.DeviceRequest{request("gpu", "gpu.nvidia.com")},
			want: "request gpu: DeviceClass gpu.nvidia.com does not exist; here it is exclusive.gpu.aliyun.com, a whole GPU, " +
				"or cgpu.gpu.aliyun.com, a part of one; the option nvidia-dra serves it as it is (docs/nvidia-dra.md)",
		},
		"a class that is nobody's": {
			requests: []resourceapi.DeviceRequest{request("gpu", "nic.example.org")},
		},
		"no GPUs at all": {
			site:     func(t *testing.T) *site { return newSite(t) },
			requests: []resourceapi.DeviceRequest{request("gpu", shareClass)},
			want:     never + "request gpu: no node offers GPUs of class share.gpu.aliyun.com; no node offers any GPUs",
		},
		"a model that no GPU is": {
			requests: []resourceapi.DeviceRequest{request("gpu", shareClass, attribute(`model == "NVIDIA-A11"`))},
			want: never + `request gpu: no GPU matches the selector device.attributes["gpu.aliyun.com"].model == "NVIDIA-A11";` +
				` class share.gpu.aliyun.com has 4 GPUs, with model NVIDIA-A10`,
		},
		"two selectors, the second of which is too much": {
			requests: []resourceapi.DeviceRequest{request("gpu", shareClass, attribute(`model == "NVIDIA-A10"`), attribute(
				"index >= 4"))},
			want: never + `request gpu: no GPU matches the selectors of the request: ` +
				`device.attributes["gpu.aliyun.com"].index >= 4 excludes the last;` +
				` class share.gpu.aliyun.com has 4 GPUs, with index 0, 1, 2, 3`,
		},
		"an attribute that GPUs do not have": {
			requests: []resourceapi.DeviceRequest{request("gpu", shareClass, attribute("memoryMB > 1000"))},
			want: `request gpu: the selector device.attributes["gpu.aliyun.com"].memoryMB > 1000 cannot be evaluated for ` +
				`device gpu-0-share of node share` +
				` (no such key: memoryMB), so no node can take the pod`,
		},
		"an attribute by the name of NVIDIA's driver": {
			requests: []resourceapi.DeviceRequest{request("gpu", shareClass,
				matching(`device.attributes["gpu.nvidia.com"].productName == "A100"`))},
			want: `request gpu: the selector device.attributes["gpu.nvidia.com"].productName == "A100" cannot be evaluated ` +
				`for device gpu-0-share of node share (no such key: productName), so no node can take the pod; ` +
				`with the option nvidia-dra, devices have the names of gpu.nvidia.com that docs/nvidia-dra.md lists; ` +
				`this one has productName by the name gpu.aliyun.com`,
		},
		"an attribute of NVIDIA's driver that GPUs do not have": {
			requests: []resourceapi.DeviceRequest{request("gpu", shareClass,
				matching(`device.attributes["gpu.nvidia.com"].addressingMode == "HMM"`))},
			want: `request gpu: the selector device.attributes["gpu.nvidia.com"].addressingMode == "HMM" cannot be evaluated ` +
				`for device gpu-0-share of node share (no such key: addressingMode), so no node can take the pod; ` +
				`with the option nvidia-dra, devices have the names of gpu.nvidia.com that docs/nvidia-dra.md lists`,
		},
		"a capacity by the name of NVIDIA's driver": {
			requests: []resourceapi.DeviceRequest{request("gpu", shareClass,
				matching(`device.capacity["gpu.nvidia.com"].cores.isGreaterThan(quantity("10"))`))},
			want: `request gpu: the selector device.capacity["gpu.nvidia.com"].cores.isGreaterThan(quantity("10")) cannot be ` +
				`evaluated for device gpu-0-share of node share (no such key: cores), so no node can take the pod; ` +
				`with the option nvidia-dra, devices have the names of gpu.nvidia.com that docs/nvidia-dra.md lists; ` +
				`this one has cores by the name gpu.aliyun.com`,
		},
		"an attribute that linked sets do not have": {
			requests: []resourceapi.DeviceRequest{request("gpu", topologyClass, attribute("index == 3"))},
			want: `request gpu: the selector device.attributes["gpu.aliyun.com"].index == 3 cannot be evaluated for device ` +
				`gpus-0-1 of node topo` +
				` (no such key: index), so no node can take the pod`,
		},
		"a selector that fails on nodes out of reach": {
			node:     "whole",
			requests: []resourceapi.DeviceRequest{request("gpu", topologyClass, attribute("index == 3"))},
			want: "request gpu: the GPUs that match are on nodes that the pod's nodeSelector, its affinity or its other " +
				"claims exclude: topo",
		},
		// The scheduler does not come to look at their devices.
		"a selector that fails on a node that is cordoned": {
			site:     func(t *testing.T) *site { return three(t).cordon("topo") },
			requests: []resourceapi.DeviceRequest{request("gpu", topologyClass, attribute("index == 3"))},
			want:     "request gpu: the GPUs that match are all taken or too full: 1 GPU on node topo",
			busy:     true,
		},
		"GPUs on other nodes alone": {
			node:     "topo",
			requests: []resourceapi.DeviceRequest{request("gpu", shareClass, amount("memory", "3Gi"))},
			want: "request gpu: the GPUs that match are on nodes that the pod's nodeSelector, its affinity or its other " +
				"claims exclude: share",
		},
		"a node that waits to change its mode": {
			site: func(t *testing.T) *site {
				return newSite(t).node("share", "a10x4", mode.Share, taint(v1alpha1.TaintSwitching))
			},
			requests: []resourceapi.DeviceRequest{request("gpu", shareClass)},
			want: "request gpu: the GPUs that match take no new claims at the moment: node share (waits to change its " +
				"mode); the Events of the node say more",
		},
		"a node without isolation": {
			site: func(t *testing.T) *site {
				return newSite(t).node("n", "v100x4", mode.MPS, taint(v1alpha1.TaintNotIsolated)).node("share", "a10x4", mode.Share)
			},
			requests: []resourceapi.DeviceRequest{request("gpu", "mps.gpu.aliyun.com")},
			want: "request gpu: the GPUs that match take no new claims at the moment: node n (isolation unavailable); " +
				"the Events of the node say more",
		},
		"GPUs that pods without a claim hold": {
			site: func(t *testing.T) *site {
				return newSite(t).node("n", "v100x4", mode.Share, room(t, "v100x4", gpu.Amount{}), taint(v1alpha1.TaintHeld))
			},
			requests: []resourceapi.DeviceRequest{request("gpu", shareClass, amount("memory", "3Gi"))},
			want: "request gpu: the GPUs that match take no new claims at the moment: node n (held by pods without a " +
				"claim); the Events of the node say more",
		},
		"GPUs that pods without a claim leave something of": {
			site: func(t *testing.T) *site {
				return newSite(t).node("n", "v100x4", mode.Share, room(t, "v100x4", gpu.Amount{Units: 2, Cores: 100, Shares: 19}))
			},
			requests: []resourceapi.DeviceRequest{request("gpu", shareClass, amount("memory", "3Gi"))},
			want:     "request gpu: the GPUs that match are all taken or too full: 4 GPUs on node n",
			busy:     true,
		},
		"all GPUs, one of which is sick": {
			site: func(t *testing.T) *site {
				return newSite(t).node("share", "a10x4", mode.Share, closed(t, "a10x4", v1alpha1.TaintUnhealthy, nil))
			},
			requests: []resourceapi.DeviceRequest{request("gpu", shareClass, everyOne)},
			want: "request gpu: all GPUs that match are asked for, and some take no new claims at the moment: node share " +
				"(unhealthy); the Events of the node say more",
		},
		// The scheduler means those alone of which enough is offered.
		"all GPUs, one of which pods without a claim hold": {
			site: func(t *testing.T) *site {
				return newSite(t).node("share", "a10x4", mode.Share, closed(t, "a10x4", v1alpha1.TaintHeld, &gpu.Amount{}))
			},
			requests: []resourceapi.DeviceRequest{request("gpu", shareClass, amount("memory", "3Gi"), everyOne)},
			want:     "request gpu: the GPUs that match are all taken or too full: 3 GPUs on node share",
			busy:     true,
		},
		"a taint that is tolerated": {
			site: func(t *testing.T) *site {
				return newSite(t).node("n", "v100x4", mode.MPS, taint(v1alpha1.TaintNotIsolated))
			},
			requests: []resourceapi.DeviceRequest{request("gpu", "mps.gpu.aliyun.com", tolerating(v1alpha1.TaintNotIsolated))},
			want:     "request gpu: the GPUs that match are all taken or too full: 4 GPUs on node n",
			busy:     true,
		},
		"a mode to come": {
			site: func(t *testing.T) *site {
				return newSite(t).node("share", "a10x4", mode.Share, taint(v1alpha1.TaintSwitching))
			},
			requests: []resourceapi.DeviceRequest{request("gpu", "mps.gpu.aliyun.com")},
			want:     "request gpu: no node offers GPUs of class mps.gpu.aliyun.com; there are GPUs in the mode share",
		},
		"GPUs that are away": {
			site: func(t *testing.T) *site {
				s := newSite(t).node("share", "a10x4", mode.Share)
				s.labels["gone"] = map[string]string{"aliyun.accelerator/nvidia_name": "Tesla-T4"}
				return s
			},
			requests: []resourceapi.DeviceRequest{request("gpu", wholeClass)},
			want:     "request gpu: no node offers GPUs of class exclusive.gpu.aliyun.com; there are GPUs in the mode share",
		},
		"all in use": {
			requests: []resourceapi.DeviceRequest{request("gpu", shareClass, amount("memory", "22Gi"))},
			want:     "request gpu: the GPUs that match are all taken or too full: 4 GPUs on node share",
			busy:     true,
		},
		"sets in use": {
			requests: []resourceapi.DeviceRequest{request("linked", topologyClass, attribute("gpuCount == 4"))},
			want:     "request linked: the linked sets that match are all taken or too full: 28 linked sets on node topo",
			busy:     true,
		},
		"in use on several nodes": {
			site: func(t *testing.T) *site {
				return newSite(t).node("a", "a10x4", mode.Share).node("b", "a10x4", mode.Share).node("c", "v100x4", mode.Share)
			},
			requests: []resourceapi.DeviceRequest{request("gpu", shareClass)},
			want:     "request gpu: the GPUs that match are all taken or too full: 12 GPUs on 3 nodes",
			busy:     true,
		},
		"one of two requests": {
			requests: []resourceapi.DeviceRequest{request("a", shareClass), request("b", shareClass, amount("memory", "23Gi"))},
			want: never + "request b: 23Gi of memory asked for; the largest GPU that matches has 22Gi (node share, " +
				"NVIDIA-A10)",
		},
		"requests that no one node can serve": {
			requests: []resourceapi.DeviceRequest{request("a", shareClass), request("b", wholeClass)},
			want:     never + "no node has all requested devices at once",
		},
		"requests for a GPU and one of somebody else": {
			requests: []resourceapi.DeviceRequest{request("a", shareClass), request("nic", "nic.example.com"),
				request("b", wholeClass)},
			want: "request a: the GPUs that match are all taken or too full: 4 GPUs on node share." +
				" request b: the GPUs that match are all taken or too full: 8 GPUs on node whole",
			busy: true,
		},
		"nothing of ours": {
			requests: []resourceapi.DeviceRequest{request("nic", "nic.example.com")},
		},
		"each GPU in several modes": {
			site:     func(t *testing.T) *site { return newSite(t).dynamicNode("dynamic", "a100x8") },
			requests: []resourceapi.DeviceRequest{request("cards", "nvidia-a100-sxm4-80gb.gpu.aliyun.com", count(9))},
			want: never + "request cards: 9 GPUs of class nvidia-a100-sxm4-80gb.gpu.aliyun.com asked for; no node has " +
				"more than 8 that match (node dynamic)",
		},
	} {
		t.Run(name, func(t *testing.T) {
			if test.site == nil {
				test.site = three
			}
			got := test.site(t).explain(podOn(test.node), claim(test.requests...))
			expect.Equal(t, test.want, got.Message, "the message")
			expect.Equal(t, test.busy, got.Busy, "busy")
		})
	}
}
