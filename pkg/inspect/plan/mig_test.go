// SPDX-License-Identifier: Apache-2.0

package plan_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/devices"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
	"github.com/gpushare/dra-driver-gpushare/pkg/mode"
)

// kinds are profiles of an A100 with 80 GB, by their names (source: NVIDIA MIG user guide).
func kinds() []gpu.Profile {
	kind := func(name string, size, count int, starts ...int) gpu.Profile {
		return gpu.Profile{Kind: gpu.Instance{Profile: name, Size: size, MemoryMiB: int64(size) * 9728}, Starts: starts,
			Count: count}
	}
	return []gpu.Profile{kind("1g.10gb", 1, 7, 0, 1, 2, 3, 4, 5, 6), kind("2g.20gb", 2, 3, 0, 2, 4),
		kind("3g.40gb", 4, 2, 0, 4), kind("7g.80gb", 8, 1, 0)}
}

// inMIGMode are so many A100 in MIG mode, from index first on, cut or to be cut.
func inMIGMode(first, n int, as gpu.Partitioned) []gpu.Partitioned {
	var out []gpu.Partitioned
	for index := first; index < first+n; index++ {
		p := as
		p.GPU = gpu.GPU{Index: index, UUID: fmt.Sprint("GPU-", index), Model: "NVIDIA-A100-SXM4-80GB", MemoryMiB: 81920}
		out = append(out, p)
	}
	return out
}

// cut is an A100 that an administrator has cut.
func cut() gpu.Partitioned {
	all := kinds()
	return gpu.Partitioned{Instances: []gpu.Instance{all[1].At(0), all[0].At(2), all[0].At(3), all[2].At(4)}}
}

// halves is an A100 that is cut into two.
func halves() gpu.Partitioned {
	half := kinds()[2]
	return gpu.Partitioned{Instances: []gpu.Instance{half.At(0), half.At(4)}}
}

// instances adds a node with GPUs in MIG mode beside others.
func (s *site) instances(name string, m mode.Mode, others *gpu.Machine, partitioned []gpu.Partitioned) {
	others.Partitioned = partitioned
	s.offer(name, devices.Build(others, devices.Options{Pool: v1alpha1.PoolName(name), Mode: m, Slots: 20}))
}

// As the user sees it: which device a pod gets, and of those that wait which profile is missing and what there is.
func TestInstances(t *testing.T) {
	static := func(m mode.Mode) func(*site) {
		return func(s *site) { s.instances("n1", m, gpus(1), inMIGMode(1, 2, cut())) }
	}
	const atLeast20 = `device.capacity["gpu.aliyun.com"].memory.compareTo(quantity("20Gi")) >= 0`
	for name, test := range map[string]struct {
		nodes    func(*site)
		manifest string
		want     string
		say      []string
	}{
		"as of NVIDIA's device plugin": {
			static(mode.Share), workload("Deployment", 5, "nvidia.com/mig-1g.10gb: 1"),
			"train-0=n1:gpu-1-mig-1g-10gb-2 train-1=n1:gpu-1-mig-1g-10gb-3 train-2=n1:gpu-2-mig-1g-10gb-2 " +
				"train-3=n1:gpu-2-mig-1g-10gb-3 train-4=-",
			[]string{"4 of 5 pods would find room, 1 would wait", "node n1 (3 GPUs): ",
				"taken: gpu-1-mig-1g-10gb-2, gpu-1-mig-1g-10gb-3, gpu-2-mig-1g-10gb-2, gpu-2-mig-1g-10gb-3",
				"n1    1    1g.10gb  3       9            team/train-1",
				"n1    2    3g.40gb  4-7     38           -"},
		},
		"the class of a profile": {
			static(mode.Exclusive), claimed("2", "3g.40gb.mig.gpu.aliyun.com"),
			"job-0=n1:gpu-1-mig-3g-40gb-4 job-1=n1:gpu-2-mig-3g-40gb-4", nil,
		},
		"any instance that is large enough": {
			static(mode.Share), claimed("3", "mig.gpu.aliyun.com", atLeast20),
			"job-0=n1:gpu-1-mig-3g-40gb-4 job-1=n1:gpu-2-mig-3g-40gb-4 job-2=-",
			[]string{"taken: gpu-1-mig-3g-40gb-4, gpu-2-mig-3g-40gb-4"},
		},
		"beside shares and whole GPUs": {
			static(mode.Share), workload("Deployment", 2, "aliyun.com/gpu-mem: 10") + "---" +
				workload("ReplicaSet", 1, "nvidia.com/mig-2g.20gb: 1"),
			"train-0=n1:gpu-0-share train-1=- train-0=n1:gpu-1-mig-2g-20gb-0", nil,
		},
		"several in a container": {
			static(mode.Share), workload("Deployment", 2, "nvidia.com/mig-1g.10gb: 3"),
			"train-0=n1:gpu-1-mig-1g-10gb-2+gpu-1-mig-1g-10gb-3+gpu-2-mig-1g-10gb-2 train-1=-",
			[]string{"asked 3 MIG instances, 1 free"},
		},
		"all of a node": {
			func(s *site) { s.instances("n1", mode.Exclusive, gpus(0), inMIGMode(0, 2, halves())) },
			workload("Deployment", 5, "nvidia.com/mig-3g.40gb: 1"),
			"train-0=n1:gpu-0-mig-3g-40gb-0 train-1=n1:gpu-0-mig-3g-40gb-4 train-2=n1:gpu-1-mig-3g-40gb-0 " +
				"train-3=n1:gpu-1-mig-3g-40gb-4 train-4=-", []string{"node n1 (2 GPUs): ", "taken: all 4 MIG instances"},
		},
		"another GPU": {
			static(mode.Exclusive), claimed("1", "mig.gpu.aliyun.com", `device.attributes["gpu.aliyun.com"].index == 5`),
			"job-0=-", []string{"no MIG instance matches", "there is index"},
		},
		"several of a profile that nobody offers": {
			static(mode.Share), workload("Deployment", 1, "nvidia.com/mig-7g.80gb: 2"), "train-0=-",
			[]string{"asked 2 MIG instances, 0 free; MIG profile: asked 7g.80gb, has 1g.10gb"},
		},
		// There is no class before a node offers the profile.
		"a profile that nobody offers": {
			static(mode.Share), workload("Deployment", 1, "nvidia.com/mig-1g.10gb.me: 1"), "train-0=-",
			[]string{"MIG profile: asked 1g.10gb.me, has 1g.10gb, 2g.20gb, 3g.40gb", "or a GPU that is cut that way"},
		},
		"no instances": {
			func(s *site) { s.node("n1", 1, mode.Share) }, workload("Deployment", 1, "nvidia.com/mig-1g.10gb: 1"),
			"train-0=-", []string{"no MIG instance"},
		},
		"a device plugin's, beside": {
			func(s *site) {
				static(mode.Share)(s)
				s.Nodes = append(s.Nodes, ackNode("old", nil, map[string]string{"nvidia.com/mig-7g.80gb": "1", "pods": "9"}))
			}, workload("Deployment", 2, "nvidia.com/mig-7g.80gb: 1"), "train-0=old: train-1=-", nil,
		},
		"whole GPUs, of which an instance is none": {
			func(s *site) {
				static(mode.Exclusive)(s)
				s.instances("n2", mode.Exclusive, gpus(0), inMIGMode(0, 1, cut()))
			}, workload("Deployment", 1, "nvidia.com/gpu: 2"), "train-0=-",
			[]string{"node n1 (3 GPUs): request nvidia.com/gpu of container main: asked 2 GPUs, 1 free\n  node n2 (1 GPUs): ",
				"would help: asking for fewer at once, or a node with more such GPUs"},
		},
		"all, which are more than a claim can have on one node": {
			func(s *site) {
				s.instances("n1", mode.Exclusive, gpus(1), inMIGMode(1, 9, cut()))
				s.instances("n2", mode.Exclusive, gpus(0), inMIGMode(0, 1, cut()))
			}, claimed("1", "mig.gpu.aliyun.com\n          allocationMode: All"), "job-0=-",
			[]string{"adding 36 devices exceeds the claim limit of 32, with 0 already accounted for (on node n1; a selector " +
				"of the request that matches fewer devices there would help, or a nodeSelector of the pod that leaves the node " +
				"out).\n",
				"node n2 (1 GPUs): it has room for one\n", "node n1 (10 GPUs): claim team/job-0-gpu, request gpu: adding 36"},
		},
		"too many, on whatever node": {
			static(mode.Exclusive), claimed("1", "mig.gpu.aliyun.com\n          count: 40"), "job-0=-",
			[]string{"can never be scheduled", "exceeds the claim limit of 32, with 0 already accounted for\n"},
		},
		"slices that are not next to each other": {
			func(s *site) {
				s.instances("n1", mode.Exclusive, gpus(0), inMIGMode(0, 1, gpu.Partitioned{Profiles: kinds()}))
				s.held("n1", "gpu-0-mig-1g-10gb-2")
				s.held("n1", "gpu-0-mig-1g-10gb-5")
			}, workload("Deployment", 1, "nvidia.com/mig-3g.40gb: 1"), "train-0=-",
			[]string{"GPU 0 has 6 memory slices free, but not 4 in a row where a 3g.40gb can begin",
				"n1    0    (free)   3-4     -            -", "18/76"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSite(t)
			test.nodes(s)
			s.read(t, test.manifest)
			made := s.plan(t)
			expect.Equal(t, test.want, strings.Join(verdicts(made), " "), "verdicts of\n%s", printed(t, made))
			expect.Says(t, printed(t, made), test.say...)
		})
	}
}

// 40 pods on 8 GPUs of which instances are made on demand: 30 small ones fill four GPUs but for the slice that none
// can begin at, and two slices of the fifth.
func TestDynamicInstances(t *testing.T) {
	s := newSite(t)
	s.instances("n1", mode.Exclusive, gpus(0), inMIGMode(0, 8, gpu.Partitioned{Profiles: kinds()}))
	s.read(t, workload("Deployment", 30, "nvidia.com/mig-1g.10gb: 1")+"---"+
		workload("ReplicaSet", 7, "nvidia.com/mig-3g.40gb: 1")+"---"+
		workload("StatefulSet", 3, "nvidia.com/mig-2g.20gb: 1"))
	made := s.plan(t)
	if made.Fits != 37 || made.Waits != 3 {
		t.Errorf("%d fit, %d wait", made.Fits, made.Waits)
	}
	var free []string
	for _, i := range made.Nodes[0].Instances {
		if i.Profile == "" {
			free = append(free, fmt.Sprintf("%d:%d+%d", i.GPU, i.Start, i.Size))
		}
	}
	expect.Equal(t, "0:7+1 1:7+1 2:7+1 3:7+1 4:6+2", strings.Join(free, " "), "free slices\n%s", printed(t, made))
	if sum := made.Nodes[0].MemoryGiB; sum.Total != 8*76 || *sum.Allocated != 30*9+7*38 {
		t.Errorf("%d of %d GiB are allocated", *sum.Allocated, sum.Total)
	}
}

// claimed is a manifest of a Job with claims for devices of a class.
func claimed(count, class string, selectors ...string) string {
	text := `
apiVersion: resource.k8s.io/v1
kind: ResourceClaimTemplate
metadata: {name: instance}
spec:
  spec:
    devices:
      requests:
      - name: gpu
        exactly:
          deviceClassName: ` + class + "\n"
	for _, s := range selectors {
		text += "          selectors: [{cel: {expression: '" + s + "'}}]\n"
	}
	return text + `
---
apiVersion: batch/v1
kind: Job
metadata: {name: job}
spec:
  parallelism: ` + count + `
  template:
    spec:
      restartPolicy: Never
      resourceClaims: [{name: gpu, resourceClaimTemplateName: instance}]
      containers: [{name: main, image: train, resources: {claims: [{name: gpu}]}}]
`
}
