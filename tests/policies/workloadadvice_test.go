// SPDX-License-Identifier: Apache-2.0

package admission

import (
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"
	"sigs.k8s.io/yaml"
)

const (
	rayWorkers = `
apiVersion: ray.io/v1
kind: RayCluster
metadata: {namespace: team, name: ray}
spec:
  headGroupSpec:
    rayStartParams: {}
    template: {spec: {containers: [{name: head, image: ray}]}}
  workerGroupSpecs:
  - groupName: gpus
    rayStartParams: {}
    template: {spec: {containers: [{name: worker, image: ray, resources: {limits: {aliyun.com/gpu-mem: 8}}}]}}
`
	rayClaim = `
apiVersion: ray.io/v1
kind: RayJob
metadata: {namespace: team, name: ray}
spec:
  rayClusterSpec:
    headGroupSpec:
      template:
        spec:
          containers: [{name: head, image: ray, resources: {claims: [{name: gpu}]}}]
          resourceClaims: [{name: gpu, resourceClaimTemplateName: share}]
`
	raySeen = "Ray sees no GPU in the pods of the head group: KubeRay counts only limits whose names end in gpu. Set " +
		"rayStartParams num-gpus"
	trainJob = `
apiVersion: trainer.kubeflow.org/v1alpha1
kind: TrainJob
metadata: {namespace: team, name: train}
spec:
  runtimeRef: {name: deepspeed-distributed}
  trainer:
    numNodes: 2
    resourcesPerNode: {limits: {aliyun.com/gpu-mem: 8}}
`
	torchRuntime = `
apiVersion: trainer.kubeflow.org/v1alpha1
kind: ClusterTrainingRuntime
metadata: {name: torch-share}
spec:
  mlPolicy: {numNodes: 1, torch: {}}
  template:
    spec:
      replicatedJobs:
      - name: node
        template:
          spec:
            template:
              spec:
                containers: [{name: node, image: torch, resources: {claims: [{name: gpu}]}}]
                resourceClaims: [{name: gpu, resourceClaimTemplateName: share}]
`
	llm = `
apiVersion: serving.kserve.io/v1alpha1
kind: LLMInferenceService
metadata:
  namespace: team
  name: llm
  annotations: {serving.kserve.io/exp-dra-device-class: mps.gpu.aliyun.com}
spec: {}
`
)

// What operators make of amounts and claims is told who creates their objects, who would otherwise look for it in pods.
func TestAdviceOnOperators(t *testing.T) {
	s := newServer(t)
	with := strings.NewReplacer
	for name, test := range map[string]struct {
		resource, object, want string
	}{
		"Ray, an amount": {"rayclusters", rayWorkers, "Ray sees no GPU in the pods of group gpus"},
		"Ray, a claim":   {"rayjobs", rayClaim, raySeen},
		"Ray, a service": {"rayservices", with("RayJob", "RayService", "rayClusterSpec", "rayClusterConfig").
			Replace(rayClaim), raySeen},
		"Ray, told in its parameters": {"rayclusters", with("gpus\n    rayStartParams: {}",
			"gpus\n    rayStartParams: {num-gpus: '1'}").Replace(rayWorkers), ""},
		"Ray, told in its resources": {"rayclusters", with("groupName: gpus",
			"groupName: gpus\n    resources: {GPU: '1'}").Replace(rayWorkers), ""},
		"Ray, whole GPUs":            {"rayclusters", with("gpu-mem: 8", "gpu: 1").Replace(rayWorkers), ""},
		"Ray, no GPU":                {"rayclusters", with("aliyun.com/gpu-mem: 8", "cpu: 8").Replace(rayWorkers), ""},
		"Trainer, an amount":         {"trainjobs", trainJob, "Kubeflow Trainer counts aliyun.com/gpu-mem 8 as 8 GPUs"},
		"Trainer, told":              {"trainjobs", with("numNodes: 2", "numProcPerNode: 1").Replace(trainJob), ""},
		"Trainer, whole GPUs":        {"trainjobs", with("gpu-mem: 8", "gpu: 8").Replace(trainJob), ""},
		"Trainer, one GiB":           {"trainjobs", with("gpu-mem: 8", "gpu-mem: 1").Replace(trainJob), ""},
		"Trainer, nothing asked for": {"trainjobs", with("{limits: {aliyun.com/gpu-mem: 8}}", "{}").Replace(trainJob), ""},
		"Trainer, a claim under torch": {"clustertrainingruntimes", torchRuntime, "torch starts a process for each CPU " +
			"where GPUs come by claims"},
		"Trainer, a runtime of a namespace": {"trainingruntimes", with("Cluster", "", "{name: torch-share}",
			"{namespace: team, name: torch-share}").Replace(torchRuntime), "torch starts a process for each CPU"},
		"Trainer, a claim under MPI": {"clustertrainingruntimes", with("torch: {}", "mpi: {}").Replace(torchRuntime), ""},
		"Trainer, torch on CPUs": {"clustertrainingruntimes", with("resources: {claims: [{name: gpu}]}",
			"resources: {}").Replace(torchRuntime), ""},
		"KServe, a share": {"llminferenceservices", llm, "KServe asks for no amount, so each pod gets a share of 1 GiB"},
		"KServe, a share of a model": {"llminferenceservices", with("mps.gpu", "share.nvidia-a10.gpu").Replace(llm),
			"share of 1 GiB"},
		"KServe, memory and compute": {"llminferenceservices", with("mps.gpu", "core-mem.gpu").Replace(llm),
			"KServe asks for no amount, so no GPU matches"},
		"KServe, whole GPUs": {"llminferenceservices", with("mps.gpu", "exclusive.gpu").Replace(llm), ""},
		"KServe, other GPUs": {"llminferenceservices", with("mps.gpu.aliyun.com", "gpu.nvidia.com").Replace(llm), ""},
		"KServe, no claim":   {"inferenceservices", with("exp-dra-device-class", "other").Replace(llm), ""},
		"Ray, an object without spec": {"rayclusters",
			"{apiVersion: ray.io/v1, kind: RayCluster, metadata: {namespace: team, name: r}}", ""},
	} {
		t.Run(name, func(t *testing.T) {
			var object unstructured.Unstructured
			asJSON, err := yaml.YAMLToJSONStrict([]byte(test.object))
			if err != nil {
				t.Fatal(err)
			}
			if err := object.UnmarshalJSON(asJSON); err != nil {
				t.Fatal(err)
			}
			version, err := schema.ParseGroupVersion(object.GetAPIVersion())
			if err != nil {
				t.Fatal(err)
			}
			got := s.warnings(t, attributesOf(somebody, &object, nil, object.GetKind(), version.WithResource(test.resource), "",
				admission.Create))
			if (got == "") != (test.want == "") || !strings.Contains(got, test.want) {
				t.Errorf("warned %q, want %q", got, test.want)
			}
		})
	}
}
