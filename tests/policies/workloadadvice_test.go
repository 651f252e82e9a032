// SPDX-License-Identifier: Apache-2.0

package admission

import (
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
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
	volcanoJob = `
apiVersion: batch.volcano.sh/v1alpha1
kind: Job
metadata: {namespace: team, name: job-low1}
spec:
  minAvailable: 1
  schedulerName: volcano
  tasks:
  - replicas: 1
    name: testjob
    template:
      spec:
        containers: [{name: c, image: train, resources: {limits: {volcano.sh/vgpu-number: 1}}}]
`
	volcanoHolds = "Volcano starts no Job before nodes offer all that it asks for, and where this driver serves the " +
		"GPUs no node offers volcano.sh/vgpu-number: give task testjob a claim instead"
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
		object, want string
	}{
		"Ray, an amount": {rayWorkers, "Ray sees no GPU in the pods of group gpus"},
		"Ray, a claim":   {rayClaim, raySeen},
		"Ray, a service": {with("RayJob", "RayService", "rayClusterSpec", "rayClusterConfig").Replace(rayClaim), raySeen},
		"Ray, told in its parameters": {with("gpus\n    rayStartParams: {}",
			"gpus\n    rayStartParams: {num-gpus: '1'}").Replace(rayWorkers), ""},
		"Ray, told in its resources": {with("groupName: gpus",
			"groupName: gpus\n    resources: {GPU: '1'}").Replace(rayWorkers), ""},
		"Ray, whole GPUs":              {with("gpu-mem: 8", "gpu: 1").Replace(rayWorkers), ""},
		"Ray, no GPU":                  {with("aliyun.com/gpu-mem: 8", "cpu: 8").Replace(rayWorkers), ""},
		"Trainer, an amount":           {trainJob, "Kubeflow Trainer counts aliyun.com/gpu-mem 8 as 8 GPUs"},
		"Trainer, told":                {with("numNodes: 2", "numProcPerNode: 1").Replace(trainJob), ""},
		"Trainer, whole GPUs":          {with("gpu-mem: 8", "gpu: 8").Replace(trainJob), ""},
		"Trainer, one GiB":             {with("gpu-mem: 8", "gpu-mem: 1").Replace(trainJob), ""},
		"Trainer, nothing asked for":   {with("{limits: {aliyun.com/gpu-mem: 8}}", "{}").Replace(trainJob), ""},
		"Trainer, a claim under torch": {torchRuntime, "torch starts a process for each CPU where GPUs come by claims"},
		"Trainer, a runtime of a namespace": {with("Cluster", "", "{name: torch-share}",
			"{namespace: team, name: torch-share}").Replace(torchRuntime), "torch starts a process for each CPU"},
		"Trainer, a claim under MPI": {with("torch: {}", "mpi: {}").Replace(torchRuntime), ""},
		"Trainer, torch on CPUs":     {with("resources: {claims: [{name: gpu}]}", "resources: {}").Replace(torchRuntime), ""},
		"KServe, a share":            {llm, "KServe asks for no amount, so each pod gets a share of 1 GiB"},
		"KServe, a share of a model": {with("mps.gpu", "share.nvidia-a10.gpu").Replace(llm), "share of 1 GiB"},
		"KServe, memory and compute": {with("mps.gpu", "core-mem.gpu").Replace(llm),
			"KServe asks for no amount, so no GPU matches"},
		"KServe, whole GPUs": {with("mps.gpu", "exclusive.gpu").Replace(llm), ""},
		"KServe, other GPUs": {with("mps.gpu.aliyun.com", "gpu.nvidia.com").Replace(llm), ""},
		"KServe, no claim":   {with("exp-dra-device-class", "other", "LLMInference", "Inference").Replace(llm), ""},
		"Volcano, a limit":   {volcanoJob, volcanoHolds},
		"Volcano, whole GPUs": {with("volcano.sh/vgpu-number", "nvidia.com/gpu").Replace(volcanoJob),
			"no node offers nvidia.com/gpu: give"},
		"Volcano, GiB, which nodes show": {with("volcano.sh/vgpu-number", "aliyun.com/gpu-mem").Replace(volcanoJob), ""},
		"Volcano, no GPU":                {with("number: 1", "number: 0").Replace(volcanoJob), ""},
		"Volcano, a claim": {with("limits: {volcano.sh/vgpu-number: 1}", "claims: [{name: gpu}]").Replace(volcanoJob),
			""},
		"Volcano, no tasks": {"{apiVersion: batch.volcano.sh/v1alpha1, kind: Job, metadata: {namespace: team, name: j}}", ""},
		"Ray, an object without spec": {"{apiVersion: ray.io/v1, kind: RayCluster, metadata: {namespace: team, name: r}}",
			""},
	} {
		t.Run(name, func(t *testing.T) {
			var object unstructured.Unstructured
			asJSON, err := yaml.YAMLToJSONStrict([]byte(test.object))
			expect.NoError(t, err)
			expect.NoError(t, object.UnmarshalJSON(asJSON))
			s.checkWarnings(t, test.want, &object)
		})
	}
}
