// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
	"github.com/gpushare/dra-driver-gpushare/tests/bench/internal/nodes"
	"github.com/gpushare/dra-driver-gpushare/tests/bench/internal/pods"
	"github.com/gpushare/dra-driver-gpushare/tests/harness"
)

const (
	// namespace is that of all pods.
	namespace = "placement"
	// memoryGiB is the memory of every GPU. Ten thousandths of a GPU are a GiB, so that no share of the trace is
	// rounded.
	memoryGiB = 100
	// fewCPUs is the taint of nodes with few CPUs for their GPUs.
	fewCPUs = "few-cpus"
)

// beside is so much CPU and memory, in the units of the trace.
func beside(cpu, memory int64) corev1.ResourceList {
	return corev1.ResourceList{corev1.ResourceCPU: *resource.NewMilliQuantity(cpu, resource.DecimalSI),
		corev1.ResourceMemory: *resource.NewQuantity(memory<<20, resource.BinarySI)}
}

// node returns a node of the trace as a kubelet registers it.
func (n *node) object(tainted bool) *corev1.Node {
	has := beside(n.cpu, n.memory)
	has[corev1.ResourcePods] = resource.MustParse("1000")
	out := nodes.Node(n.name, has)
	if tainted && n.cramped() {
		out.Spec.Taints = []corev1.Taint{{Key: fewCPUs, Effect: corev1.TaintEffectPreferNoSchedule}}
	}
	return out
}

// machine returns the GPUs of a node of the trace.
func (n *node) machine() *gpu.Machine {
	m := &gpu.Machine{DriverVersion: "580.95.05", CUDADriverVersion: "13.0"}
	for i := range n.rests {
		m.GPUs = append(m.GPUs, gpu.GPU{Index: i, Minor: i, UUID: fmt.Sprintf("GPU-%s-%d", n.name, i), Model: n.model,
			ProductName: n.model, MemoryMiB: memoryGiB << 10, PCIBusID: fmt.Sprintf("0000:%02x:00.0", i+1)})
	}
	return m
}

// template is the name of the claims of pods with GPUs.
func (k *kind) template() string {
	return strings.ToLower(strings.Join(append([]string{fmt.Sprintf("gpus-%d-%d", k.gpus, k.share)}, k.models...), "-"))
}

// claim returns the claim of pods of the kind, as users write it.
func (k *kind) claim() resourceapi.ResourceClaimSpec {
	request := harness.Exclusive("gpu", int64(k.gpus))
	request.Exactly.DeviceClassName = v1alpha1.DriverName
	if k.share < milli {
		request.Exactly.DeviceClassName = harness.ShareClass
		request.Exactly.Capacity = harness.Capacity(v1alpha1.CapMemory, fmt.Sprintf("%dGi", k.share*memoryGiB/milli))
	}
	if len(k.models) > 0 {
		request = harness.Matching(request, fmt.Sprintf(`device.attributes[%q].model in ["%s"]`, v1alpha1.DriverName,
			strings.Join(k.models, `", "`)))
	}
	return harness.Requests(request)
}

// pod returns a pod of the kind. A pod with GPUs tolerates the taint and, if gated, has the gate of the option
// best-node-gate.
func (k *kind) pod(name string, gated bool) *corev1.Pod {
	pod := pods.Anywhere(name)
	pod.Spec.Containers[0].Resources.Requests = beside(k.cpu, k.memory)
	if k.gpus == 0 {
		return pod
	}
	harness.FromTemplate(k.template())(pod)
	pod.Spec.Tolerations = []corev1.Toleration{{Key: fewCPUs, Operator: corev1.TolerationOpExists}}
	if gated {
		pod.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: v1alpha1.GateBestNode}}
	}
	return pod
}
