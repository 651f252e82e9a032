// SPDX-License-Identifier: Apache-2.0

package plan_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/devices"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
	"github.com/gpushare/dra-driver-gpushare/pkg/inspect/fromack"
	"github.com/gpushare/dra-driver-gpushare/pkg/inspect/plan"
	"github.com/gpushare/dra-driver-gpushare/pkg/mode"
	"github.com/gpushare/dra-driver-gpushare/pkg/scheduling"
)

func ackNode(name string, labels, amounts map[string]string) *corev1.Node {
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels},
		Status: corev1.NodeStatus{Capacity: corev1.ResourceList{}, Allocatable: corev1.ResourceList{}}}
	for resourceName, amount := range amounts {
		node.Status.Capacity[corev1.ResourceName(resourceName)] = resource.MustParse(amount)
		node.Status.Allocatable[corev1.ResourceName(resourceName)] = resource.MustParse(amount)
	}
	return node
}

func ackPod(name, node string, age int, limits map[string]string) *corev1.Pod {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "prod", Name: name,
		CreationTimestamp: metav1.NewTime(time.Unix(int64(age), 0))},
		Spec: corev1.PodSpec{NodeName: node, SchedulerName: "ack-co-scheduler",
			Containers: []corev1.Container{{Name: "main"}}}}
	list := corev1.ResourceList{}
	for resourceName, amount := range limits {
		list[corev1.ResourceName(resourceName)] = resource.MustParse(amount)
	}
	pod.Spec.Containers[0].Resources = corev1.ResourceRequirements{Limits: list, Requests: list}
	return pod
}

// What runs by ACK's device plugins today finds room by claims, where it is; what does not is
// said, as is what the driver does not serve.
func TestFromACK(t *testing.T) {
	s := &site{plan.Input{Now: time.Unix(0, 0)}}
	share := func(model, memory string) map[string]string {
		return map[string]string{"ack.node.gpu.schedule": "share", "aliyun.accelerator/nvidia_name": model,
			"aliyun.accelerator/nvidia_mem": memory, "aliyun.accelerator/nvidia_count": "2"}
	}
	s.Nodes = []*corev1.Node{
		ackNode("n1", share("Tesla-V100-SXM2-16GB", "16130MiB"), map[string]string{"aliyun.com/gpu-mem": "30", "pods": "10",
			"cpu": "4"}),
		ackNode("n2", map[string]string{"cgpu": "true"}, map[string]string{"aliyun.com/gpu-mem": "15",
			"aliyun.com/gpu-count": "1", "pods": "10", "cpu": "4"}),
		ackNode("n3", nil, map[string]string{"nvidia.com/gpu": "1", "pods": "10"}),
		ackNode("n4", map[string]string{"ack.node.gpu.schedule": "mig", "aliyun.accelerator/nvidia_count": "1",
			"aliyun.accelerator/nvidia_mem": "40960MiB"}, nil),
		ackNode("n5", map[string]string{"ack.node.gpu.schedule": "topology", "aliyun.accelerator/nvidia_count": "4",
			"aliyun.accelerator/nvidia_mem": "16130MiB"}, map[string]string{"aliyun.com/gpu": "4", "pods": "10"}),
		ackNode("cpu", nil, map[string]string{"cpu": "4", "pods": "10"}),
	}
	s.Nodes[2].Labels = map[string]string{"aliyun.accelerator/nvidia_mem": "15360MiB"}
	mem := func(gib string) map[string]string { return map[string]string{"aliyun.com/gpu-mem": gib, "cpu": "1"} }
	pods := []*corev1.Pod{
		ackPod("second", "n1", 2, mem("9")), ackPod("first", "n2", 1, mem("9")), ackPod("third", "n1", 3, mem("9")),
		ackPod("whole", "n3", 4, map[string]string{"nvidia.com/gpu": "1"}),
		ackPod("linked", "n5", 5, map[string]string{"aliyun.com/gpu": "2"}),
		ackPod("waits", "", 6, mem("9")),
		ackPod("odd", "n1", 7, map[string]string{"aliyun.com/gpu-mem": "1", "aliyun.com/gpu-core.percentage": "7"}),
		ackPod("web", "n1", 8, map[string]string{"cpu": "1"}),
	}
	s.Bound = slices.DeleteFunc(slices.Clone(pods), func(p *corev1.Pod) bool { return p.Spec.NodeName == "" })
	expect.NoError(t, fromack.Move(&s.Input, pods))
	made := s.plan(t)
	want := []string{"first=n2:gpu-0-cgpu", "second=n1:gpu-0-share", "third=n1:gpu-1-share", "whole=n3:gpu-0",
		"linked=n5:gpu-0-topology+gpu-1-topology", "waits=-", "odd=-"}
	expect.Equal(t, want, verdicts(made), "verdicts of\n%s", printed(t, made))
	expect.Says(t, printed(t, made), "5 of 7 pods", "pod/waits -n prod (the cluster), pod waits: no node has room",
		"largest free 6Gi", "it would be refused: ")
	expect.Says(t, strings.Join(made.Notes, "\n"), "Node n4 is left out: how its GPUs are cut into MIG instances is "+
		"not known before the driver runs there", "How the GPUs of n5 are linked is not known")
	if s.Nodes[0].Status.Allocatable["cpu"] != resource.MustParse("4") || len(s.Bound) != 1 {
		t.Errorf("node %v, bound %v", s.Nodes[0].Status.Allocatable, s.Bound)
	}
}

func TestNodesThatHaveMovedStayAsTheyAre(t *testing.T) {
	s := newSite(t)
	s.node("n1", 1, mode.Share, func(n *corev1.Node) { n.Labels["aliyun.accelerator/nvidia_count"] = "8" })
	s.Nodes = append(s.Nodes, ackNode("n2", map[string]string{"aliyun.accelerator/nvidia_count": "8"}, nil),
		ackNode("n3", map[string]string{"aliyun.accelerator/nvidia_count": "many"}, nil))
	before := len(s.Slices)
	expect.NoError(t, fromack.Move(&s.Input, nil))
	expect.Equal(t, before, len(s.Slices), "slices")
	expect.Says(t, strings.Join(s.Notes, "\n"), "Node n2 is left out: how much memory its GPUs have is not known",
		"Node n3 is left out: how many GPUs it has is not known")
}

// What NVIDIA's device plugin has shared is as many GPUs as there are.
func TestReplicasAreNoGPUs(t *testing.T) {
	label := func(labels ...string) map[string]string {
		out := map[string]string{"nvidia.com/gpu.product": "Tesla-T4-SHARED", "nvidia.com/gpu.memory": "15360"}
		for i := 0; i < len(labels); i += 2 {
			out[labels[i]] = labels[i+1]
		}
		return out
	}
	for name, test := range map[string]struct {
		labels map[string]string
		shows  map[string]string
		gpus   int
	}{
		"counted": {label("nvidia.com/gpu.count", "1", "nvidia.com/gpu.replicas", "4"),
			map[string]string{"nvidia.com/gpu": "4"}, 1},
		"not counted":          {label("nvidia.com/gpu.replicas", "4"), map[string]string{"nvidia.com/gpu": "8"}, 2},
		"only some are shared": {label("nvidia.com/gpu.replicas", "4"), map[string]string{"nvidia.com/gpu": "5"}, 2},
		"not shared":           {label("nvidia.com/gpu.replicas", "1"), map[string]string{"nvidia.com/gpu": "2"}, 2},
		"ACK counts": {label("nvidia.com/gpu.count", "7", "nvidia.com/gpu.replicas", "4",
			"aliyun.accelerator/nvidia_count", "3"), map[string]string{"nvidia.com/gpu": "12"}, 3},
		"ACK shows": {label("nvidia.com/gpu.replicas", "4"), map[string]string{"aliyun.com/gpu-count": "4"}, 4},
		"beside MIG instances": {label("nvidia.com/gpu.replicas", "4"),
			map[string]string{"nvidia.com/gpu": "4", "nvidia.com/mig-1g.10gb": "7"}, 2},
	} {
		t.Run(name, func(t *testing.T) {
			s := &site{plan.Input{Now: time.Unix(0, 0), Snapshot: scheduling.Snapshot{
				Nodes: []*corev1.Node{ackNode("n1", test.labels, test.shows)}}}}
			expect.NoError(t, fromack.Move(&s.Input, nil))
			gpus := map[int64]bool{}
			for _, slice := range s.Slices {
				for _, d := range slice.Spec.Devices {
					gpus[*d.Attributes["index"].IntValue] = true
					expect.Equal(t, "Tesla-T4", *d.Attributes["model"].StringValue, "model of %s", d.Name)
				}
			}
			expect.Equal(t, test.gpus, len(gpus), "GPUs; notes %q", s.Notes)
		})
	}
}

// What pods of a device plugin hold on a node that has moved is not offered there: they are not planned once more, and
// count in their gangs.
func TestPodsOnNodesThatHaveMovedStay(t *testing.T) {
	s := newSite(t)
	s.offer("n1", devices.Build(gpus(1), devices.Options{Pool: v1alpha1.PoolName("n1"), Mode: mode.Share, Slots: 20,
		Room: map[string]gpu.Amount{"GPU-0": {Units: 6, Cores: 100, Shares: 19}}}))
	s.Nodes = append(s.Nodes, ackNode("n2", map[string]string{"aliyun.accelerator/nvidia_name": "Tesla-T4",
		"aliyun.accelerator/nvidia_mem": "15360MiB", "ack.node.gpu.schedule": "share"},
		map[string]string{"aliyun.com/gpu-count": "1"}))
	asks := func(gib string) map[string]string { return map[string]string{"aliyun.com/gpu-mem": gib} }
	pods := []*corev1.Pod{ofGang(ackPod("there", "n1", 1, asks("9")), "3"),
		ofGang(ackPod("moves", "n2", 2, asks("15")), "3"), ofGang(ackPod("comes", "", 3, asks("6")), "3")}
	s.Bound = pods[:2]
	expect.NoError(t, fromack.Move(&s.Input, pods))
	made := s.plan(t)
	expect.Equal(t, []string{"moves=n2:gpu-0-share", "comes=n1:gpu-0-share"}, verdicts(made), "verdicts")
	if len(s.Bound) != 1 || s.Bound[0].Name != "there" {
		t.Errorf("bound are %v", s.Bound)
	}
}

// What a node's label asks for beyond what Alibaba's module takes, the driver does not heed.
func TestSharesBeyondTheModule(t *testing.T) {
	s := &site{plan.Input{Now: time.Unix(0, 0), Snapshot: scheduling.Snapshot{Nodes: []*corev1.Node{ackNode("n1",
		map[string]string{"cgpu": "true", "aliyun.accelerator/nvidia_count": "1", "ack.node.gpu.max-pod": "30",
			"aliyun.accelerator/nvidia_mem": "40960MiB"}, nil)}}}}
	expect.NoError(t, fromack.Move(&s.Input, nil))
	if len(s.Slices) != 1 || len(s.Notes) > 0 {
		t.Fatalf("slices %v, notes %q", s.Slices, s.Notes)
	}
	slots := s.Slices[0].Spec.Devices[0].Capacity["slots"]
	expect.Equal(t, 20, slots.Value.Value(), "shares that the GPU takes")
}
