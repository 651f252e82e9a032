// SPDX-License-Identifier: Apache-2.0

package plan_test

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/pkg/inspect/fromack"
	"github.com/gpushare/dra-driver-gpushare/pkg/inspect/plan"
)

// Of instances that NVIDIA's device plugin serves, with its strategy "mixed", it is known how many there are of each
// profile.
func TestInstancesBeforeAMigration(t *testing.T) {
	one := func(name string) map[string]string { return map[string]string{name: "1"} }
	for name, test := range map[string]struct {
		node *corev1.Node
		pods []map[string]string
		want string
		say  []string
	}{
		"a node of ACK": {
			ackNode("n1", map[string]string{"ack.node.gpu.schedule": "mig", "aliyun.accelerator/nvidia_count": "4",
				"aliyun.accelerator/nvidia_mem": "81920MiB", "aliyun.accelerator/nvidia_name": "NVIDIA-A100-SXM4-80GB",
				"nvidia.com/mig-1g.10gb.memory": "9728", "nvidia.com/mig-3g.40gb.memory": "40192"},
				map[string]string{"nvidia.com/gpu": "2", "nvidia.com/mig-1g.10gb": "4", "nvidia.com/mig-3g.40gb": "2",
					"nvidia.com/mig-2g.20gb": "0", "pods": "9"}),
			[]map[string]string{one("nvidia.com/mig-1g.10gb"), one("nvidia.com/mig-3g.40gb"), one("nvidia.com/mig-3g.40gb"),
				one("nvidia.com/mig-3g.40gb"), one("nvidia.com/gpu"), one("nvidia.com/mig-2g.20gb")},
			"a=n1:gpu-2-mig-1g-10gb-0 b=n1:gpu-2-mig-3g-40gb-2 c=n1:gpu-3-mig-3g-40gb-2 d=- e=n1:gpu-0 f=-",
			[]string{"Which GPU each MIG instance of n1 is part of is not known: numbers of GPUs and slices are made up.",
				"taken: gpu-2-mig-3g-40gb-2, gpu-3-mig-3g-40gb-2", "MIG profile: asked 2g.20gb, has 1g.10gb, 3g.40gb",
				"n1    unknown    80/80                  0/80                   48/57                  39/57"},
		},
		"a node of the GPU Operator": {
			ackNode("n1", map[string]string{"nvidia.com/mig.strategy": "mixed", "nvidia.com/gpu.memory": "40960",
				"nvidia.com/gpu.product": "NVIDIA-A100-SXM4-40GB"},
				map[string]string{"nvidia.com/gpu": "1", "nvidia.com/mig-1g.5gb": "14", "nvidia.com/mig-1g.5gb.me": "1",
					"nvidia.com/mig-1c.3g.20gb": "2", "nvidia.com/mig-1g.10gb.shared": "8", "pods": "9"}),
			[]map[string]string{one("nvidia.com/mig-1g.5gb"), one("nvidia.com/mig-1g.5gb.me"), one("nvidia.com/gpu"),
				one("nvidia.com/mig-1c.3g.20gb")},
			"a=n1:gpu-1-mig-1g-5gb-0 b=n1:gpu-3-mig-1g-5gb-me-4 c=n1:gpu-0 d=-",
			[]string{"The memory of MIG instances of n1 is taken from the names of their profiles",
				"Of node n1 is left out, as the driver offers whole MIG instances: nvidia.com/mig-1c.3g.20gb, " +
					"nvidia.com/mig-1g.10gb.shared."},
		},
		"all GPUs are cut": {
			ackNode("n1", nil, map[string]string{"nvidia.com/mig-7g.80gb": "2", "pods": "9"}),
			[]map[string]string{one("nvidia.com/mig-7g.80gb"), one("nvidia.com/gpu")},
			"a=n1:gpu-0-mig-7g-80gb-0 b=-", nil,
		},
		// The device plugin that is there may still have what a claim cannot be planned for.
		"an instance is called a GPU": {
			ackNode("n1", map[string]string{"nvidia.com/mig.strategy": "single",
				"nvidia.com/gpu.product": "NVIDIA-A100-SXM4-80GB-MIG-1g.10gb"},
				map[string]string{"nvidia.com/gpu": "7", "pods": "9"}),
			[]map[string]string{one("nvidia.com/gpu")}, "a=n1:",
			[]string{"Node n1 is left out: its nvidia.com/gpu are MIG instances, or may be (label nvidia.com/mig.strategy="},
		},
		"strategy single, no GPU in MIG mode": {
			ackNode("n1", map[string]string{"nvidia.com/mig.strategy": "single", "nvidia.com/gpu.memory": "81920",
				"nvidia.com/gpu.product": "NVIDIA-A100-SXM4-80GB"}, map[string]string{"nvidia.com/gpu": "8", "pods": "9"}),
			[]map[string]string{one("nvidia.com/gpu")}, "a=n1:gpu-0", nil,
		},
		"parts of instances alone": {
			ackNode("n1", map[string]string{"aliyun.accelerator/nvidia_count": "2", "aliyun.accelerator/nvidia_mem": "81920MiB"},
				map[string]string{"nvidia.com/mig-1c.3g.40gb": "6", "pods": "9"}), nil, "",
			[]string{"Node n1 is left out: how many GPUs it has is not known"},
		},
		"more than can be": {
			ackNode("n1", nil, map[string]string{"nvidia.com/mig-1g.10gb": "100000000", "pods": "9"}), nil, "",
			[]string{"Node n1 is left out: how many GPUs it has is not known"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := &site{plan.Input{Now: time.Unix(0, 0)}}
			s.Nodes = []*corev1.Node{test.node}
			var pods []*corev1.Pod
			for i, limits := range test.pods {
				pods = append(pods, ackPod(string(rune('a'+i)), "n1", i, limits))
			}
			s.Bound = pods
			expect.NoError(t, fromack.Move(&s.Input, pods))
			made := s.plan(t)
			expect.Equal(t, test.want, strings.Join(verdicts(made), " "), "verdicts of\n%s", printed(t, made))
			expect.Says(t, printed(t, made)+strings.Join(made.Notes, "\n"), test.say...)
		})
	}
}
