// SPDX-License-Identifier: Apache-2.0

package advice_test

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/pkg/explain/advice"
)

// asking is a pod whose container main asks for resources.
func asking(resources ...string) *corev1.Pod {
	requests := corev1.ResourceList{}
	for _, r := range resources {
		name, amount, _ := strings.Cut(r, "=")
		requests[corev1.ResourceName(name)] = resource.MustParse(amount)
	}
	return &corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "main",
		Resources: corev1.ResourceRequirements{Requests: requests, Limits: requests}}}}}
}

// selecting is a pod with a nodeSelector.
func selecting(label, value string) *corev1.Pod {
	return &corev1.Pod{Spec: corev1.PodSpec{NodeSelector: map[string]string{label: value}}}
}

// preferring is a pod with an affinity of these alternatives.
func preferring(terms ...corev1.NodeSelectorRequirement) *corev1.Pod {
	selector := &corev1.NodeSelector{}
	for _, term := range terms {
		selector.NodeSelectorTerms = append(selector.NodeSelectorTerms,
			corev1.NodeSelectorTerm{MatchExpressions: []corev1.NodeSelectorRequirement{term}})
	}
	return &corev1.Pod{Spec: corev1.PodSpec{Affinity: &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{
		RequiredDuringSchedulingIgnoredDuringExecution: selector}}}}
}

// annotated is a pod of KAI, with annotations in pairs of a name and a value.
func annotated(annotations ...string) *corev1.Pod {
	pod := asking("cpu=1")
	pod.Spec.SchedulerName, pod.Annotations = "kai-scheduler", map[string]string{}
	for i := 0; i < len(annotations); i += 2 {
		pod.Annotations[annotations[i]] = annotations[i+1]
	}
	return pod
}

// cluster serves resources and has labels.
func cluster(served, labels []string) advice.Cluster {
	return advice.Cluster{
		Served:     func(name corev1.ResourceName) bool { return slices.Contains(served, string(name)) },
		OnSomeNode: func(key string) bool { return slices.Contains(labels, key) },
	}
}

func TestOf(t *testing.T) {
	const (
		see    = ". docs/legacy.md lists the requests that are served"
		giB    = " (GiB)" + see
		anyGiB = " (GiB, GIB being the memory that it is to have)" + see
		again  = "the pod was created before the policies that convert what it asks for, or past them: delete it and " +
			"create it again"
	)
	not := func(resources string) string {
		return "container main asks for " + resources + ", which no node serves. Write these limits instead: "
	}
	notCut := func(resource string) string {
		return "container main asks for " + resource + ", and no node offers a MIG instance of that profile. " +
			"Have a GPU cut into such instances (docs/mig.md), or write these limits instead: "
	}
	noOther := func(annotation string) string {
		return "the annotation " + annotation + " asks KAI's scheduler for a part of a GPU, and no other reads it. Write " +
			"these limits instead: "
	}
	seen := annotated("gpu-fraction", "0.5")
	seen.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse}}
	forDefault := annotated("gpu-fraction", "0.5")
	forDefault.Spec.SchedulerName, forDefault.Status = corev1.DefaultSchedulerName, seen.Status
	for name, test := range map[string]struct {
		pod            *corev1.Pod
		served, labels []string
		want           string
	}{
		"KAI: a fraction": {annotated("gpu-fraction", "0.5"), nil, nil, noOther("gpu-fraction") +
			"aliyun.com/gpu-mem: GIB" + anyGiB},
		"KAI: memory of two GPUs": {annotated("gpu-memory", "2000", "gpu-fraction-num-devices", "2"), nil, nil,
			noOther("gpu-memory") + `aliyun.com/gpu-mem: 4 (GiB; of 2 GPUs together, with the pod's label ` +
				`aliyun.com/gpu-count: "2")` + see},
		"KAI, which runs": {seen, nil, nil, ""},
		"KAI, with Kubernetes' scheduler": {forDefault, nil, nil, noOther("gpu-fraction") +
			"aliyun.com/gpu-mem: GIB" + anyGiB},
		"a whole GPU":                {asking("nvidia.com/gpu=1"), []string{"nvidia.com/gpu"}, nil, ""},
		"no GPU":                     {asking("cpu=1", "example.com/nic=1"), nil, nil, ""},
		"what another plugin serves": {asking("nvidia.com/gpumem=3000"), []string{"nvidia.com/gpumem"}, nil, ""},
		"none of it":                 {asking("nvidia.com/gpumem=0"), nil, nil, ""},
		"a whole GPU, but no class": {asking("nvidia.com/gpu=1"), nil, nil, "container main asks for nvidia.com/gpu, " +
			"which no DeviceClass hands out: apply deviceclasses/exclusive.gpu.aliyun.com.yaml of the driver" + see},
		"HAMi: memory": {asking("nvidia.com/gpu=1", "nvidia.com/gpumem=3000"), []string{"nvidia.com/gpu"},
			nil, not("nvidia.com/gpu, nvidia.com/gpumem") + "aliyun.com/gpu-mem: 3" + giB},
		"HAMi: memory and compute": {asking("nvidia.com/gpu=1", "nvidia.com/gpumem=3072", "nvidia.com/gpucores=33"),
			[]string{"nvidia.com/gpu"}, nil, not("nvidia.com/gpu, nvidia.com/gpucores, nvidia.com/gpumem") +
				"aliyun.com/gpu-mem: 3 and aliyun.com/gpu-core.percentage: 35" + giB},
		"HAMi: of two GPUs": {asking("nvidia.com/gpu=2", "nvidia.com/gpumem=4096", "nvidia.com/gpucores=50"),
			[]string{"nvidia.com/gpu"}, nil, not("nvidia.com/gpu, nvidia.com/gpucores, nvidia.com/gpumem") +
				`aliyun.com/gpu-mem: 8 and aliyun.com/gpu-core.percentage: 100 (GiB; of 2 GPUs together, with the pod's label ` +
				`aliyun.com/gpu-count: "2")` + see},
		"HAMi: percent of memory": {asking("nvidia.com/gpu=1", "nvidia.com/gpumem-percentage=50"),
			[]string{"nvidia.com/gpu"}, nil, not("nvidia.com/gpu, nvidia.com/gpumem-percentage") + "aliyun.com/gpu-mem: GIB" +
				anyGiB},
		"HAMi: compute alone": {asking("nvidia.com/gpucores=100"), nil, nil, not("nvidia.com/gpucores") +
			"aliyun.com/gpu-mem: GIB and aliyun.com/gpu-core.percentage: 100" + anyGiB},
		"ACK: a name too short": {asking("aliyun.com/gpu-core=20"), nil, nil, not("aliyun.com/gpu-core") +
			"aliyun.com/gpu-mem: GIB and aliyun.com/gpu-core.percentage: 20" + anyGiB},
		"ACK: memory misspelt": {asking("aliyun.com/gpumem=3"), nil, nil, not("aliyun.com/gpumem") + "aliyun.com/gpu-mem: 3" +
			giB},
		"ACK: memory and percent misspelt": {asking("aliyun.com/gpu_memory=3", "aliyun.com/gpu-core-percentage=20"), nil, nil,
			not("aliyun.com/gpu-core-percentage, aliyun.com/gpu_memory") +
				"aliyun.com/gpu-mem: 3 and aliyun.com/gpu-core.percentage: 20" + giB},
		"ACK: GPUs misspelt": {asking("aliyun.com/gpus=2"), nil, nil, not("aliyun.com/gpus") +
			"nvidia.com/gpu: 2" + see},
		"ACK: another resource":    {asking("aliyun.com/eni=1"), nil, nil, ""},
		"ACK: before the policies": {asking("aliyun.com/gpu-mem=3"), nil, nil, again},
		"ACK: percent, before them": {asking("aliyun.com/gpu-mem=3", "aliyun.com/gpu-core.percentage=20"), nil, nil,
			again},
		"ACK: on nodes of its plugin": {asking("aliyun.com/gpu-mem=3"), []string{"aliyun.com/gpu-mem"}, nil, ""},
		"MIG": {asking("nvidia.com/mig-1g.5gb=1"), nil, nil, notCut("nvidia.com/mig-1g.5gb") +
			"aliyun.com/gpu-mem: 5" + giB},
		"MIG with media": {asking("nvidia.com/mig-1g.10gb.me=1"), nil, nil, notCut("nvidia.com/mig-1g.10gb.me") +
			"aliyun.com/gpu-mem: 10" + giB},
		"MIG, compute instance": {asking("nvidia.com/mig-1c.3g.20gb=1"), nil, nil, notCut("nvidia.com/mig-1c.3g.20gb") +
			"aliyun.com/gpu-mem: 20" + giB},
		"MIG, cut": {asking("nvidia.com/mig-1g.5gb=1"), []string{"nvidia.com/mig-1g.5gb"}, nil, ""},
		"time-slicing": {asking("nvidia.com/gpu.shared=1"), nil, nil, not("nvidia.com/gpu.shared") +
			"aliyun.com/gpu-mem: GIB" + anyGiB},
		"nos: a slice": {asking("nvidia.com/gpu-10gb=1"), nil, nil, not("nvidia.com/gpu-10gb") + "aliyun.com/gpu-mem: 10" +
			giB},
		"a model's name": {asking("nvidia.com/gpu-a100=2"), nil, nil, not("nvidia.com/gpu-a100") +
			"nvidia.com/gpu: 2" + see},
		"Kubernetes' first name": {asking("alpha.kubernetes.io/nvidia-gpu=1"), nil, nil,
			not("alpha.kubernetes.io/nvidia-gpu") + "nvidia.com/gpu: 1" + see},
		"Volcano": {asking("volcano.sh/vgpu-number=1", "volcano.sh/vgpu-memory=10240",
			"volcano.sh/vgpu-cores=50"), nil, nil, not("volcano.sh/vgpu-cores, volcano.sh/vgpu-memory, volcano.sh/vgpu-number") +
			"aliyun.com/gpu-mem: 10 and aliyun.com/gpu-core.percentage: 50" + giB},
		"vgpu-manager": {asking("nvidia.com/vgpu-number=1", "nvidia.com/vgpu-memory=3000", "nvidia.com/vgpu-cores=50"), nil,
			nil, not("nvidia.com/vgpu-cores, nvidia.com/vgpu-memory, nvidia.com/vgpu-number") +
				"aliyun.com/gpu-mem: 3 and aliyun.com/gpu-core.percentage: 50" + giB},
		"Koordinator": {asking("koordinator.sh/gpu-core=50", "koordinator.sh/gpu-memory=8Gi"), nil, nil,
			not("koordinator.sh/gpu-core, koordinator.sh/gpu-memory") + "aliyun.com/gpu-mem: 8 and " +
				"aliyun.com/gpu-core.percentage: 50" + giB},
		"Koordinator: two whole": {asking("koordinator.sh/gpu=200"), nil, nil, not("koordinator.sh/gpu") +
			"nvidia.com/gpu: 2" + see},
		"gpu-manager": {asking("tencent.com/vcuda-core=20", "tencent.com/vcuda-memory=10"), nil, nil,
			not("tencent.com/vcuda-core, tencent.com/vcuda-memory") + "aliyun.com/gpu-mem: 3 and " +
				"aliyun.com/gpu-core.percentage: 20" + giB},
		"NVIDIA's labels": {selecting("nvidia.com/gpu.product", "NVIDIA-A100-SXM4-80GB"), nil, nil,
			"no node has the label nvidia.com/gpu.product: select aliyun.accelerator/nvidia_name: NVIDIA-A100-SXM4-80GB"},
		"NVIDIA's labels, of MIG": {selecting("nvidia.com/gpu.product", "NVIDIA-A100-SXM4-80GB-MIG-1g.10gb"), nil, nil,
			"no node has the label nvidia.com/gpu.product: select aliyun.accelerator/nvidia_name: NVIDIA-A100-SXM4-80GB"},
		"NVIDIA's labels, time-slicing": {selecting("nvidia.com/gpu.product", "Tesla-T4-SHARED"), nil, nil,
			"no node has the label nvidia.com/gpu.product: select aliyun.accelerator/nvidia_name: Tesla-T4"},
		"NVIDIA's labels, which are set": {selecting("nvidia.com/gpu.product", "Tesla-T4"), nil,
			[]string{"nvidia.com/gpu.product"}, ""},
		"any GPU": {selecting("nvidia.com/gpu.present", "true"), nil, nil, "no node has the label " +
			"nvidia.com/gpu.present: select nothing: what asks for a GPU leads to a node that has one"},
		"a GPU's memory": {selecting("nvidia.com/gpu.memory", "81920"), nil, nil, "no node has the label " +
			"nvidia.com/gpu.memory: select aliyun.accelerator/nvidia_mem: 81920MiB"},
		"a cloud's name for a model": {selecting("cloud.google.com/gke-accelerator", "nvidia-tesla-t4"), nil, nil,
			"no node has the label cloud.google.com/gke-accelerator: select aliyun.accelerator/nvidia_name (kubectl get " +
				"nodes -L aliyun.accelerator/nvidia_name shows the values)"},
		"another label": {selecting("disktype", "ssd"), nil, nil, ""},
		"one model or another": {
			preferring(corev1.NodeSelectorRequirement{Key: "nvidia.com/gpu.product", Operator: corev1.NodeSelectorOpIn,
				Values: []string{"Tesla-T4", "NVIDIA-A10"}}), nil, nil,
			"no node has the label nvidia.com/gpu.product: select aliyun.accelerator/nvidia_name: NVIDIA-A10 or Tesla-T4"},
		"a label, or another that is there": {preferring(
			corev1.NodeSelectorRequirement{Key: "nvidia.com/gpu.product", Operator: corev1.NodeSelectorOpIn,
				Values: []string{"Tesla-T4"}},
			corev1.NodeSelectorRequirement{Key: "zone", Operator: corev1.NodeSelectorOpExists}), nil, nil, ""},
		"not a model": {preferring(corev1.NodeSelectorRequirement{Key: "nvidia.com/gpu.product",
			Operator: corev1.NodeSelectorOpNotIn, Values: []string{"Tesla-T4"}}), nil, nil, ""},
	} {
		t.Run(name, func(t *testing.T) {
			got := advice.Of(test.pod, cluster(test.served, test.labels))
			expect.Equal(t, test.want, got, "the advice")
			if got != "" && !advice.Concerns(test.pod) {
				t.Errorf("of a pod that does not concern the package: %q", got)
			}
		})
	}
}

// A pod of many containers is told of some.
func TestFewAreNamed(t *testing.T) {
	pod := asking("nvidia.com/gpumem=1024")
	for range 20 {
		pod.Spec.Containers = append(pod.Spec.Containers, pod.Spec.Containers[0])
	}
	if got := advice.Of(pod, cluster(nil, nil)); len(got) > 1024 || !strings.Contains(got, "and 18 more of this kind") {
		t.Errorf("%d bytes: %s", len(got), got)
	}
}

func TestClass(t *testing.T) {
	for _, name := range []string{"gpu.nvidia.com", "mig.nvidia.com", "vgpu-manager", "gpu-manager"} {
		if advice.Class(name) == "" {
			t.Errorf("nothing is said of DeviceClass %s", name)
		}
	}
	expect.Equal(t, "", advice.Class("nic.example.com"), "of another class")
}

// Option knows all that the policy of the option converts.
func TestOptionNamesWhatThePolicyConverts(t *testing.T) {
	policy, err := os.ReadFile("../../../deployments/options/other-manifests/policy.yaml")
	if err != nil {
		t.Fatal(err)
	}
	_, condition, _ := strings.Cut(string(policy), "matchConditions:")
	condition, _, _ = strings.Cut(condition, "variables:")
	names := regexp.MustCompile(`'((?:nvidia\.com|volcano\.sh)/[a-z.-]+)'`).FindAllStringSubmatch(condition, -1)
	if len(names) < 10 {
		t.Fatalf("the policy's condition has the names %q", names)
	}
	for _, found := range names {
		name := found[1]
		pod := asking(name + "=1")
		pod.Annotations = map[string]string{"nvidia.com/use-gputype": "A100"}
		if got := advice.Option(pod); !strings.Contains(got, "converts "+name+" of container main when") {
			t.Errorf("%s: %q", name, got)
		}
		if got := advice.Option(asking(name + "=0")); got != "" {
			t.Errorf("none of %s: %q", name, got)
		}
	}
	for _, name := range []string{"nvidia.com/gpu", "aliyun.com/gpu-mem", "nvidia.com/mig-1g.10gb"} {
		if got := advice.Option(asking(name + "=1")); got != "" {
			t.Errorf("%s, which the option leaves alone: %q", name, got)
		}
	}
}
