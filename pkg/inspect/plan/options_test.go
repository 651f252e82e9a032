// SPDX-License-Identifier: Apache-2.0

package plan_test

import (
	"fmt"
	"os"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/pkg/mode"
)

// Plan places pods of docs/other-manifests.md as the policies of the option convert them. If no API server has
// converted them, plan names the option.
func TestManifestsOfOtherProjects(t *testing.T) {
	const option = "With the option other-manifests, the API server converts "
	for limits, test := range map[string]struct{ annotation, name string }{
		"nvidia.com/gpu: 1, nvidia.com/gpumem: 3000":          {"", "nvidia.com/gpumem"},
		"nvidia.com/gpu: 1, nvidia.com/gpumem-percentage: 50": {"", "nvidia.com/gpumem-percentage"},
		"nvidia.com/gpu: 1, nvidia.com/gpucores: 33":          {"", "nvidia.com/gpucores"},
		"nvidia.com/gpu.shared: 1":                            {"", "nvidia.com/gpu.shared"},
		"nvidia.com/gpu: 1": {"nvidia.com/use-gputype: A100",
			"nvidia.com/gpu"},
		"volcano.sh/vgpu-number: 1, volcano.sh/vgpu-memory: 10240":         {"", "volcano.sh/vgpu-memory"},
		"volcano.sh/gpu-number: 1":                                         {"", "volcano.sh/gpu-number"},
		"nvidia.com/vgpu-number: 1, nvidia.com/vgpu-memory: 3000":          {"", "nvidia.com/vgpu-memory"},
		"nvidia.com/vgpu-number: 1, nvidia.com/vgpu-cores: 50":             {"", "nvidia.com/vgpu-cores"},
		"volcano.sh/vgpu-number: 1, volcano.sh/vgpu-memory-percentage: 50": {"", "volcano.sh/vgpu-memory-percentage"},
	} {
		t.Run(limits+test.annotation, func(t *testing.T) {
			manifest := strings.Replace(workload("Deployment", 1, limits), "metadata: {labels",
				"metadata: {annotations: {"+test.annotation+"}, labels", 1)
			s := newSite(t)
			s.node("n1", 1, mode.Exclusive)
			s.read(t, manifest)
			made := s.plan(t)
			expect.Equal(t, 1, made.Waits, "pods that wait without a server")
			expect.Says(t, printed(t, made), option+test.name+" of container main when it creates the pod: "+
				"docs/other-manifests.md. Only a dry run tells how")
		})
	}
	// The server has the option.
	s := newSite(t)
	s.node("n1", 1, mode.CGPU)
	s.admitted(t, workload("Deployment", 1, "nvidia.com/gpu: 1, nvidia.com/gpumem: 3000"),
		withClaim("gpushare.mem-on--cgpu.main.3"))
	expect.Equal(t, "train-0=n1:gpu-0-cgpu", strings.Join(verdicts(s.plan(t)), " "), "as converted")
	// A server without the option leaves the pod as it is; one whose author opted out is another driver's.
	unchanged := func(*corev1.PodTemplateSpec) {}
	s = newSite(t)
	s.node("n1", 1, mode.CGPU, allocatable(map[corev1.ResourceName]string{"cpu": "3", "pods": "9"}))
	s.admitted(t, workload("Deployment", 1, "nvidia.com/gpumem: 3000"), unchanged)
	expect.Says(t, printed(t, s.plan(t)), "no node takes it", "nvidia.com/gpumem: asked 3k, free 0",
		"would help: container main asks for nvidia.com/gpumem, which no node serves", "would help: "+option)
	s = newSite(t)
	s.node("n1", 1, mode.CGPU, allocatable(map[corev1.ResourceName]string{"nvidia.com/gpumem": "16k", "pods": "9"}))
	s.read(t, workload("Deployment", 1, "nvidia.com/gpumem: 3000", `, gpu.aliyun.com/legacy: "false"`))
	if made := s.plan(t); made.Fits != 1 {
		t.Errorf("one that opted out waits:\n%s", printed(t, made))
	}
}

// Nodes of machine files do not say what they have. Limits that no node could serve are told all the same.
func TestLimitsThatNoNodeServes(t *testing.T) {
	for limits, says := range map[string]string{
		"aliyun.com/gpumem: 3":       "container main asks for aliyun.com/gpumem, which no node serves",
		"tencent.com/vcuda-core: 20": "Write these limits instead: aliyun.com/gpu-mem: GIB",
		"nvidia.com/gpu: 1":          "",
		"cpu: 1, example.com/nic: 1": "",
	} {
		t.Run(limits, func(t *testing.T) {
			s := newSite(t)
			s.node("n1", 1, mode.Exclusive)
			s.read(t, workload("Deployment", 1, limits))
			made := s.plan(t)
			if text := printed(t, made); (made.Fits == 1) != (says == "") || !strings.Contains(text, says) {
				t.Errorf("%d fits, want one that says %q:\n%s", made.Fits, says, text)
			}
		})
	}
}

// ofNVIDIA returns a claim template of docs/nvidia-dra.md, and two pods that each have a claim of it.
func ofNVIDIA(class, request, sharing string) string {
	config := ""
	if sharing != "" {
		config = ", config: [{opaque: {driver: gpu.nvidia.com, parameters: {apiVersion: resource.nvidia.com/v1beta1, " +
			"kind: GpuConfig, sharing: {" + sharing + "}}}}]"
	}
	return fmt.Sprintf(`---
apiVersion: resource.k8s.io/v1
kind: ResourceClaimTemplate
metadata: {name: gpu}
spec: {spec: {devices: {requests: [{name: gpu, exactly: {deviceClassName: %s%s}}]%s}}}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: train}
spec:
  replicas: 2
  selector: {matchLabels: {app: train}}
  template:
    metadata: {labels: {app: train}}
    spec:
      containers: [{name: main, image: train, resources: {claims: [{name: gpu}]}}]
      resourceClaims: [{name: gpu, resourceClaimTemplateName: gpu}]
`, class, request, config)
}

// Plan places claims of docs/nvidia-dra.md as the policy of the option converts them. Whole GPUs need its classes
// alone.
func TestClaimsForNVIDIAsDriver(t *testing.T) {
	classes, err := os.ReadFile("../../../deployments/options/nvidia-dra/classes.yaml")
	expect.NoError(t, err)
	const (
		whole    = "train-0=n1:gpu-0 train-1=n1:gpu-1"
		part     = ", capacity: {requests: {memory: 4Gi}}"
		mps      = "strategy: MPS, mpsConfig: {defaultPinnedDeviceMemoryLimit: 10Gi}"
		isPart   = "request gpu asks for a part of a GPU by class gpu.nvidia.com, which the option nvidia-dra turns into "
		noOption = "the option nvidia-dra serves it as it is (docs/nvidia-dra.md)"
	)
	for name, test := range map[string]struct {
		classes   string
		manifests string
		want      string
		says      string
	}{
		"a whole GPU": {string(classes), ofNVIDIA("gpu.nvidia.com", "", ""), whole, ""},
		"a time slice": {string(classes), ofNVIDIA("gpu.nvidia.com", "",
			"strategy: TimeSlicing, timeSlicingConfig: {interval: Long}"), whole, ""},
		"a part":        {string(classes), ofNVIDIA("gpu.nvidia.com", part, ""), "train-0=- train-1=-", isPart},
		"MPS":           {string(classes), ofNVIDIA("gpu.nvidia.com", "", mps), "train-0=- train-1=-", isPart},
		"no option":     {"", ofNVIDIA("gpu.nvidia.com", "", ""), "train-0=- train-1=-", noOption},
		"no option MIG": {"", ofNVIDIA("mig.nvidia.com", "", ""), "train-0=- train-1=-", noOption},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSite(t)
			s.node("n1", 2, mode.Exclusive)
			s.read(t, test.classes+test.manifests)
			made := s.plan(t)
			expect.Equal(t, test.want, strings.Join(verdicts(made), " "), "verdicts")
			if test.says != "" {
				expect.Says(t, printed(t, made), test.says)
			}
		})
	}
	// The API server has the option, and made the requests shares, which fit on one GPU.
	s := newSite(t)
	s.node("n1", 2, mode.CGPU)
	s.read(t, string(classes)+ofNVIDIA("gpu.nvidia.com", part, ""))
	s.AdmittedClaims = map[string]resourceapi.ResourceClaimSpec{"ResourceClaimTemplate/team/gpu": {
		Devices: resourceapi.DeviceClaim{Requests: []resourceapi.DeviceRequest{{Name: "gpu",
			Exactly: &resourceapi.ExactDeviceRequest{DeviceClassName: "cgpu.gpu.aliyun.com",
				Capacity: &resourceapi.CapacityRequirements{Requests: map[resourceapi.QualifiedName]resource.Quantity{
					"memory": resource.MustParse("4Gi")}}}}}}}}
	expect.Equal(t, "train-0=n1:gpu-0-cgpu train-1=n1:gpu-0-cgpu", strings.Join(verdicts(s.plan(t)), " "), "as converted")
}
