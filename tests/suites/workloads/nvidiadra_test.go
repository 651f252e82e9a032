// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package workloads

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"sigs.k8s.io/yaml"

	"github.com/gpushare/dra-driver-gpushare/tests/harness"
)

// spec is that of a claim as its author writes it.
func spec(t *testing.T, text string) resourceapi.ResourceClaimSpec {
	t.Helper()
	var s resourceapi.ResourceClaimSpec
	if err := yaml.UnmarshalStrict([]byte(text), &s); err != nil {
		t.Fatalf("%v in:\n%s", err, text)
	}
	return s
}

// nvidiaPod tolerates what NVIDIA's examples do.
func nvidiaPod(name, node string, options ...func(*corev1.Pod)) *corev1.Pod {
	return harness.Pod(name, node, append(options, func(pod *corev1.Pod) {
		pod.Spec.Tolerations = []corev1.Toleration{{Key: "nvidia.com/gpu", Operator: corev1.TolerationOpExists,
			Effect: corev1.TaintEffectNoSchedule}}
	})...)
}

// costly has a namespace whose claims may cost the scheduler more.
func costly(n *corev1.Namespace) {
	n.Labels = map[string]string{"gpu.aliyun.com/costly-claims": "allowed"}
}

// oneGPU is the spec in gpu-test1, 2 and 3 of NVIDIA's examples.
const oneGPU = `{devices: {requests: [{name: gpu, exactly: {deviceClassName: gpu.nvidia.com}}]}}`

// hasTimeSlice waits until the driver of a node has that time slice for a GPU, by its number in nvidia-smi.
func hasTimeSlice(t *testing.T, node, uuid, want string) {
	t.Helper()
	file := cluster.NodeFile(node, "/run/nvidia/driver/state", uuid+".timeslice")
	what := fmt.Sprintf("GPU %s of node %s has time slice %s", uuid, node, want)
	harness.Eventually(t, what, func(context.Context) error {
		got, err := os.ReadFile(file)
		if err == nil && string(got) != want {
			err = fmt.Errorf("it has %s", got)
		}
		return err
	})
}

// With the option nvidia-dra, claims run that were written for NVIDIA's DRA driver: those of its examples.
func TestWholeGPUsByNVIDIAsClass(t *testing.T) {
	ns := cluster.Namespace(t, costly)
	ns.Template(t, "single-gpu", spec(t, oneGPU))
	ns.Claim(t, "shared-gpu", spec(t, oneGPU))
	ns.Template(t, "near", spec(t, `
devices:
  requests: [{name: gpus, exactly: {deviceClassName: gpu.nvidia.com, count: 2}}]
  constraints: [{requests: [gpus], matchAttribute: resource.kubernetes.io/pcieRoot}]`))
	ns.Template(t, "a100", spec(t, `
devices:
  requests:
  - name: gpu
    exactly:
      deviceClassName: gpu.nvidia.com
      selectors:
      - cel:
          expression: |
            device.attributes['gpu.nvidia.com'].productName.lowerAscii().matches('^.*a100.*$')
            && (device.attributes['gpu.nvidia.com'].index == 0 || device.attributes['gpu.nvidia.com'].index == 6)
            && device.capacity['gpu.nvidia.com'].memory.compareTo(quantity('32Gi')) >= 0
            && device.attributes['gpu.nvidia.com'].type == 'gpu'
  config:
  - requests: [gpu]
    opaque:
      driver: gpu.nvidia.com
      parameters:
        apiVersion: resource.nvidia.com/v1beta1
        kind: GpuConfig
        sharing: {strategy: TimeSlicing, timeSlicingConfig: {interval: Long}}`))
	ns.Run(t, nvidiaPod("a1", dynamicNode, harness.FromTemplate("a100")),
		nvidiaPod("a2", dynamicNode, harness.FromTemplate("a100")))
	ns.Run(t, nvidiaPod("one", dynamicNode, harness.FromTemplate("single-gpu")),
		nvidiaPod("first", dynamicNode, harness.FromClaim("shared-gpu")),
		nvidiaPod("second", dynamicNode, harness.FromClaim("shared-gpu")),
		nvidiaPod("two", dynamicNode, harness.FromTemplate("near")))
	had := map[string][]string{}
	for _, pod := range []string{"a1", "a2", "one", "first", "second", "two"} {
		grants := ns.Granted(t, pod)
		ns.SeesItsGPUs(t, pod, "main", grants)
		for _, g := range grants {
			had[pod] = append(had[pod], g.GPU.UUID)
		}
	}
	if !slices.Equal(had["first"], had["second"]) {
		t.Errorf("pods with one claim have the GPUs %v", had)
	}
	if len(had["two"]) != 2 {
		t.Errorf("a pod that asks for two GPUs of one PCIe root has %q", had["two"])
	}
	for _, pod := range []string{"a1", "a2"} {
		if g := ns.Granted(t, pod)[0].GPU; g.Index != 0 && g.Index != 6 {
			t.Errorf("pod %s has GPU %d", pod, g.Index)
		}
		hasTimeSlice(t, dynamicNode, had[pod][0], "3")
	}
	ns.Delete(t, "a1")
	hasTimeSlice(t, dynamicNode, had["a1"][0], "0")
}

// One claim has a GPU with time slices, and part of another by MPS, which two containers share each: gpu-test5, and
// gpu-test-mps.
func TestSharingAsNVIDIAConfiguresIt(t *testing.T) {
	ns := cluster.Namespace(t)
	ns.Template(t, "multiple-gpus", spec(t, `
devices:
  requests:
  - {name: ts-gpu, exactly: {deviceClassName: gpu.nvidia.com}}
  - {name: mps-gpu, exactly: {deviceClassName: gpu.nvidia.com}}
  config:
  - requests: [ts-gpu]
    opaque:
      driver: gpu.nvidia.com
      parameters:
        apiVersion: resource.nvidia.com/v1beta1
        kind: GpuConfig
        sharing: {strategy: TimeSlicing, timeSlicingConfig: {interval: Short}}
  - requests: [mps-gpu]
    opaque:
      driver: gpu.nvidia.com
      parameters:
        apiVersion: resource.nvidia.com/v1beta1
        kind: GpuConfig
        sharing: {strategy: MPS, mpsConfig: {defaultActiveThreadPercentage: 50, defaultPinnedDeviceMemoryLimit: 10Gi}}`))
	ns.Template(t, "gpu-4gi", spec(t, `
devices:
  requests: [{name: gpu, exactly: {deviceClassName: gpu.nvidia.com, capacity: {requests: {memory: 4Gi}}}}]`))
	// Plan places the claim as the policy converts it, which it learns from a dry run.
	planned := ns.PlannedPods(t, nvidiaPod("a", dynamicNode, harness.FromTemplate("gpu-4gi"))).Pods[0]
	if len(planned.Devices) != 1 || !strings.HasSuffix(planned.Devices[0], "-cgpu") {
		t.Errorf("a part of a GPU is planned as %+v", planned)
	}
	twice := func(pod *corev1.Pod) {
		for _, c := range pod.Spec.Containers {
			c.Name += "-1"
			pod.Spec.Containers = append(pod.Spec.Containers, c)
		}
	}
	ns.Run(t, nvidiaPod("pod0", dynamicNode, harness.FromTemplate("multiple-gpus"),
		harness.PerRequest("ts-gpu", "mps-gpu"), twice),
		nvidiaPod("a", dynamicNode, harness.FromTemplate("gpu-4gi")),
		nvidiaPod("b", dynamicNode, harness.FromTemplate("gpu-4gi")))

	units := map[string]int64{}
	for _, g := range ns.Granted(t, "pod0") {
		units[g.Request] = g.Units
		if g.Request == "ts-gpu" {
			hasTimeSlice(t, dynamicNode, g.GPU.UUID, "1")
		}
	}
	if units["ts-gpu"] != 0 || units["mps-gpu"] != 10 {
		t.Errorf("granted by request: %v GiB, want a whole GPU and 10 GiB", units)
	}
	for _, container := range []string{"mps-gpu", "mps-gpu-1"} {
		env := ns.GPUEnv(t, "pod0", container)
		if env["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] != "50" || env["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] != "0=10240M" {
			t.Errorf("container %s has the environment %v", container, env)
		}
	}
	a, b := ns.Granted(t, "a")[0], ns.Granted(t, "b")[0]
	if a.Units != 4 || b.Units != 4 || a.GPU.UUID != b.GPU.UUID {
		t.Errorf("shares of 4Gi are %+v and %+v, want one GPU's", a, b)
	}
	if limit := ns.GPUEnv(t, "a", "main")["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"]; !strings.HasPrefix(limit, "0=4") {
		t.Errorf("a share of 4Gi has the limit %q", limit)
	}
}

// Instances of one GPU, each for a container: gpu-test4. What has no meaning here is refused in words.
func TestMIGInstancesByNVIDIAsClass(t *testing.T) {
	ns := cluster.Namespace(t, costly)
	const requests = `
devices:
  requests:
  - name: small
    exactly:
      deviceClassName: mig.nvidia.com
      selectors: [{cel: {expression: "device.attributes['gpu.nvidia.com'].profile == '1g.10gb'"}}]
  - name: middle
    exactly:
      deviceClassName: mig.nvidia.com
      selectors: [{cel: {expression: "device.attributes['gpu.nvidia.com'].profile == '2g.20gb'"}}]
  - name: large
    exactly:
      deviceClassName: mig.nvidia.com
      selectors: [{cel: {expression: "device.capacity['gpu.nvidia.com'].memory.isGreaterThan(quantity('30Gi'))"}}]
  constraints: [{requests: [], matchAttribute: gpu.nvidia.com/parentUUID}]
`
	ns.Template(t, "mig-devices", spec(t, requests))
	ns.Template(t, "mig-mps", spec(t, requests+`
  config:
  - opaque:
      driver: gpu.nvidia.com
      parameters: {apiVersion: resource.nvidia.com/v1beta1, kind: MigDeviceConfig, sharing: {strategy: MPS}}`))
	ns.Run(t, nvidiaPod("pod", migNode, harness.FromTemplate("mig-devices"),
		harness.PerRequest("small", "middle", "large")))
	claim := ns.ClaimOf(t, "pod")
	var devices []string
	for _, r := range claim.Status.Allocation.Devices.Results {
		devices = append(devices, r.Device[:len("gpu-0")])
	}
	if slices.Sort(devices); len(devices) != 3 || devices[0] != devices[2] {
		t.Errorf("instances of %q, want three of one GPU", devices)
	}
	ns.Create(t, nvidiaPod("refused", migNode, harness.FromTemplate("mig-mps"),
		harness.PerRequest("small", "middle", "large")))
	ns.WaitPodEvent(t, "refused", "FailedPrepareDynamicResources", "MPS on MIG instances is not offered here")
}
