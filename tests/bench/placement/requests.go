// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
	"github.com/gpushare/dra-driver-gpushare/tests/bench/internal/nodes"
)

const (
	// namespace is that of all pods.
	namespace = "placement"
	// memoryGiB is that of every GPU: ten thousandths of one are a GiB, and nothing is rounded.
	memoryGiB = 100
	// fewCPUs is the taint of nodes with few CPUs for their GPUs.
	fewCPUs = "few-cpus"
)

// node is a node of the trace as a kubelet registers it.
func (n *node) object(tainted bool) *corev1.Node {
	out := nodes.New(n.name, corev1.ResourceList{
		corev1.ResourceCPU:    *resource.NewMilliQuantity(n.cpu, resource.DecimalSI),
		corev1.ResourceMemory: *resource.NewQuantity(n.memory<<20, resource.BinarySI),
		corev1.ResourcePods:   resource.MustParse("1000"),
	})
	if tainted && n.cramped() {
		out.Spec.Taints = []corev1.Taint{{Key: fewCPUs, Effect: corev1.TaintEffectPreferNoSchedule}}
	}
	return out
}

// machine are the GPUs of a node of the trace.
func (n *node) machine() *gpu.Machine {
	m := &gpu.Machine{DriverVersion: "580.95.05", CUDADriverVersion: "13.0"}
	for i := range n.rests {
		m.GPUs = append(m.GPUs, gpu.GPU{Index: i, Minor: i, UUID: fmt.Sprintf("GPU-%s-%d", n.name, i), Model: n.model,
			ProductName: n.model, MemoryMiB: memoryGiB << 10, PCIBusID: fmt.Sprintf("0000:%02x:00.0", i+1)})
	}
	return m
}

// template is the name of the claims of pods, empty for those without GPUs.
func (k *kind) template() string {
	if k.gpus == 0 {
		return ""
	}
	return strings.ToLower(strings.Join(append([]string{fmt.Sprintf("gpus-%d-%d", k.gpus, k.share)}, k.models...), "-"))
}

// claims asks for what pods of the kind ask for, as users write it.
func (k *kind) claims() *resourceapi.ResourceClaimTemplate {
	asked := &resourceapi.ExactDeviceRequest{DeviceClassName: v1alpha1.DriverName,
		AllocationMode: resourceapi.DeviceAllocationModeExactCount, Count: int64(k.gpus)}
	if k.share < milli {
		asked.DeviceClassName = "share." + v1alpha1.DriverName
		asked.Capacity = &resourceapi.CapacityRequirements{Requests: map[resourceapi.QualifiedName]resource.Quantity{
			v1alpha1.CapMemory: resource.MustParse(fmt.Sprintf("%dGi", k.share*memoryGiB/milli))}}
	}
	if len(k.models) > 0 {
		asked.Selectors = []resourceapi.DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{Expression: fmt.Sprintf(
			`device.attributes[%q].model in ["%s"]`, v1alpha1.DriverName, strings.Join(k.models, `", "`))}}}
	}
	return &resourceapi.ResourceClaimTemplate{
		ObjectMeta: metav1.ObjectMeta{Name: k.template()},
		Spec: resourceapi.ResourceClaimTemplateSpec{Spec: resourceapi.ResourceClaimSpec{Devices: resourceapi.DeviceClaim{
			Requests: []resourceapi.DeviceRequest{{Name: "gpu", Exactly: asked}}}}},
	}
}

// pod is one of the kind. Pods with GPUs tolerate the taint.
func (k *kind) pod(name string) *corev1.Pod {
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.PodSpec{
			TerminationGracePeriodSeconds: ptr.To(int64(0)), AutomountServiceAccountToken: ptr.To(false),
			Containers: []corev1.Container{{Name: "main", Image: "none.invalid/never-run",
				Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{
					corev1.ResourceCPU:    *resource.NewMilliQuantity(k.cpu, resource.DecimalSI),
					corev1.ResourceMemory: *resource.NewQuantity(k.memory<<20, resource.BinarySI),
				}}}},
		},
	}
	if k.gpus > 0 {
		pod.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "gpus", ResourceClaimTemplateName: ptr.To(k.template())}}
		pod.Spec.Containers[0].Resources.Claims = []corev1.ResourceClaim{{Name: "gpus"}}
		pod.Spec.Tolerations = []corev1.Toleration{{Key: fewCPUs, Operator: corev1.TolerationOpExists}}
	}
	return pod
}
