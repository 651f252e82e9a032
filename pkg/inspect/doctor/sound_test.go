// SPDX-License-Identifier: Apache-2.0

package doctor_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
	"github.com/gpushare/dra-driver-gpushare/pkg/inspect/doctor"
	"github.com/gpushare/dra-driver-gpushare/pkg/mode"
)

const (
	labelMode  = "ack.node.gpu.schedule"
	labelModel = "aliyun.accelerator/nvidia_name"
)

// migrating is the driver as options.migration installs it, and n1 is a device plugin's still.
func migrating(s *doctor.Snapshot) {
	s.DaemonSets[0].Spec.Template.Spec.Containers = []corev1.Container{{Env: []corev1.EnvVar{
		{Name: "REQUIRED_NODE_LABEL", Value: "gpu.aliyun.com/migrated"}}}}
	s.ValidatingBindings = slices.DeleteFunc(s.ValidatingBindings,
		func(b *admissionv1.ValidatingAdmissionPolicyBinding) bool { return b.Name == "gpushare-legacy-refuse" })
	keepsDevicePlugin(s)
}

// configured is migrating, with the label's name in a ConfigMap.
func configured(s *doctor.Snapshot) {
	migrating(s)
	c := &s.DaemonSets[0].Spec.Template.Spec.Containers[0]
	c.Env, c.EnvFrom = nil, []corev1.EnvFromSource{{ConfigMapRef: &corev1.ConfigMapEnvSource{
		LocalObjectReference: corev1.LocalObjectReference{Name: "gpu-kubelet-plugin"}}}}
	s.ConfigMaps = []*corev1.ConfigMap{{ObjectMeta: metav1.ObjectMeta{Namespace: "gpu", Name: "gpu-kubelet-plugin"},
		Data: map[string]string{"REQUIRED_NODE_LABEL": "gpu.aliyun.com/migrated"}}}
}

func keepsDevicePlugin(s *doctor.Snapshot) {
	s.Slices[0].Spec.Devices = nil
	s.Nodes[0].Status.Allocatable = corev1.ResourceList{"nvidia.com/gpu": resource.MustParse("1")}
}

// asksAsOnACK makes the pod p one that was not converted.
func asksAsOnACK(s *doctor.Snapshot) {
	s.Pods[3].Spec.Containers = []corev1.Container{{Resources: corev1.ResourceRequirements{
		Limits: corev1.ResourceList{"aliyun.com/gpu-mem": resource.MustParse("3")}}}}
}

func supervisors(s *doctor.Snapshot) {
	s.DaemonSets = append(s.DaemonSets, &appsv1.DaemonSet{ObjectMeta: meta("gpu-mps-supervisor", "gpu-mps-supervisor"),
		Status: appsv1.DaemonSetStatus{DesiredNumberScheduled: 1, NumberReady: 1}})
	s.Pods = append(s.Pods, podOf("gpu-mps-supervisor", "n1"))
}

// cut is a node of mode m with a whole GPU and one that an administrator has cut.
func cut(label string, m mode.Mode) func(s *doctor.Snapshot) {
	return func(s *doctor.Snapshot) {
		s.Slices[0] = sliceOfMachine(s.Nodes[0].Name, m, &gpu.Machine{GPUs: []gpu.GPU{oneT4},
			Partitioned: []gpu.Partitioned{{GPU: gpu.GPU{Index: 1, UUID: "GPU-1", Model: "A100", MemoryMiB: 81920},
				Instances: []gpu.Instance{{InstanceID: gpu.InstanceID{GI: 2}, UUID: "MIG-1", Profile: "3g.40gb", Size: 4,
					MemoryMiB: 40192}}}}})
		s.Nodes[0].Labels[labelMode] = label
	}
}

// What the documents describe as an installation in order is one; note is what is said of it.
func TestSound(t *testing.T) {
	for name, test := range map[string]struct {
		change func(s *doctor.Snapshot)
		note   string
	}{
		"a migration":                 {migrating, ""},
		"a migration, by a ConfigMap": {configured, ""},
		"a migration's node without a plugin's pod": {func(s *doctor.Snapshot) {
			migrating(s)
			s.Pods, s.Slices = s.Pods[1:], s.Slices[1:]
		}, ""},
		"a device plugin on a node without the label": {func(s *doctor.Snapshot) {
			keepsDevicePlugin(s)
			delete(s.Nodes[0].Labels, labelMode)
		}, "note device-plugin node/n1: a device plugin serves nvidia.com/gpu there"},
		"a disabled node": {func(s *doctor.Snapshot) {
			s.Slices[0].Spec.Devices, s.Nodes[0].Labels[labelMode] = nil, "disabled"
		}, ""},
		"a disabled node with GPUs": {func(s *doctor.Snapshot) {
			s.Nodes[1].Labels = map[string]string{labelMode: "disabled", labelModel: "Tesla-T4"}
		}, ""},
		"a GPU node that is another driver's": {func(s *doctor.Snapshot) {
			s.Nodes[1].Labels = map[string]string{v1alpha1.LabelGPUDriver: "gpu.nvidia.com", labelModel: "Tesla-T4"}
			s.NodeEvents = []corev1.Event{saidOf("n2", v1alpha1.ReasonModeNotServed, "it is another driver's", time.Minute)}
		}, ""},
		"another driver's that keeps its mode's label": {func(s *doctor.Snapshot) {
			s.Slices[0].Spec.Devices = nil
			s.Nodes[0].Labels[v1alpha1.LabelGPUDriver] = "gpu.nvidia.com"
			s.NodeEvents = []corev1.Event{saidOf("n1", v1alpha1.ReasonModeNotServed, "it is another driver's", time.Minute)}
		}, ""},
		"a GPU node that is a device plugin's": {func(s *doctor.Snapshot) {
			s.Nodes[1].Labels[labelModel] = "Tesla-T4"
			s.Nodes[1].Status.Allocatable = corev1.ResourceList{"nvidia.com/gpu": resource.MustParse("1")}
			s.NodeEvents = []corev1.Event{saidOf("n2", v1alpha1.ReasonModeNotServed, "a device plugin serves", time.Minute)}
		}, "note device-plugin node/n2: a device plugin serves nvidia.com/gpu there"},
		"a GPU node that has not moved": {func(s *doctor.Snapshot) {
			migrating(s)
			s.Nodes[1].Labels[labelModel] = "Tesla-T4"
		}, ""},
		"a GPU node that is not the driver's": {func(s *doctor.Snapshot) {
			s.Nodes = append(s.Nodes, nodeOf("n3", ""))
			s.Nodes[2].Labels[labelModel] = "Tesla-T4"
		}, ""},
		"what was said long ago": {func(s *doctor.Snapshot) {
			s.NodeEvents = []corev1.Event{saidOf("n2", v1alpha1.ReasonPodsUnread, "no pods", 40*time.Minute),
				saidOf("n1", v1alpha1.ReasonLeftOut, "Not offered: GPU 1 (GPU-1): Lost: gone", 40*time.Minute)}
		}, ""},
		"what was said long ago, by a clock that is ahead": {func(s *doctor.Snapshot) {
			s.NodeEvents = []corev1.Event{writtenAgo(40*time.Minute, saidOf("n2", v1alpha1.ReasonPodsUnread, "no pods",
				-48*time.Hour))}
		}, ""},
		"a GPU that is back": {func(s *doctor.Snapshot) {
			s.NodeEvents = []corev1.Event{saidOf("n1", v1alpha1.ReasonLeftOut, "Not offered: GPU 0 (GPU-0): Lost: gone",
				time.Minute)}
		}, ""},
		"a label that was corrected": {func(s *doctor.Snapshot) {
			s.Nodes[0].Labels["ack.node.gpu.placement"] = "spread"
			s.NodeEvents = []corev1.Event{invalidPlacement("n1")}
		}, ""},
		"a controller that has just come":   {func(s *doctor.Snapshot) { unreadyLeader(s, now.Add(-time.Second)) }, ""},
		"MIG instances and whole GPUs":      {cut("mig", mode.Exclusive), ""},
		"MIG instances on a node of shares": {cut("share", mode.Share), ""},
		"a supervisor that keeps its image": {func(s *doctor.Snapshot) {
			supervisors(s)
			s.Pods[4].Spec.Containers[0].Image = image + ".0"
		}, "note versions : pods of gpu-mps-supervisor run " + image + ".0, as no other program does"},
		"a tenant's pod with the driver's labels": {func(s *doctor.Snapshot) {
			forged := podOf("gpu-kubelet-plugin", "n1")
			forged.Namespace, forged.Spec.Containers[0].Image = "a", "busybox"
			s.Pods = append(s.Pods, forged)
		}, ""},
		"a pod that opted out": {func(s *doctor.Snapshot) {
			asksAsOnACK(s)
			s.Pods[3].Labels = map[string]string{"gpu.aliyun.com/legacy": "false"}
		}, ""},
		"a namespace that opted out": {func(s *doctor.Snapshot) {
			asksAsOnACK(s)
			s.Namespaces[0].Labels = map[string]string{"gpu.aliyun.com/legacy": "false"}
		}, ""},
		"a namespace of the system": {func(s *doctor.Snapshot) {
			asksAsOnACK(s)
			s.Namespaces[0].Name, s.Pods[3].Namespace = "kube-system", "kube-system"
		}, ""},
		"a migration's namespace that did not opt in": {func(s *doctor.Snapshot) {
			asksAsOnACK(s)
			optIn(s)
		}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			s := installed(t)
			test.change(s)
			r := doctor.Examine(s)
			if found := told(r); !r.Sound() || !strings.Contains(found, test.note) || test.note == "" && found != "" {
				t.Errorf("found\n%s\nwant %s", found, test.note)
			}
		})
	}
}

// optIn has the policy convert pods of namespaces alone that opted in.
func optIn(s *doctor.Snapshot) {
	for _, b := range s.MutatingBindings {
		b.Spec.MatchResources = &admissionv1.MatchResources{NamespaceSelector: &metav1.LabelSelector{
			MatchLabels: map[string]string{"gpu.aliyun.com/legacy": "true"}}}
	}
}

// A migration is no excuse for nodes that moved already, nor for what it does not leave out.
func TestMigrationsFindings(t *testing.T) {
	for name, test := range map[string]struct {
		change func(s *doctor.Snapshot)
		want   string
	}{
		"a node that moved": {func(s *doctor.Snapshot) { s.Nodes[0].Labels["gpu.aliyun.com/migrated"] = "" },
			"error device-plugin node/n1: a device plugin serves nvidia.com/gpu there"},
		"a node that moved and offers nothing": {func(s *doctor.Snapshot) {
			s.Nodes[0].Labels["gpu.aliyun.com/migrated"] = ""
		}, "error registered node/n1: it has the label ack.node.gpu.schedule=share and offers no GPUs"},
		"a policy that is missing": {func(s *doctor.Snapshot) { s.Validating = nil },
			"missing: gpushare-legacy-elastic-advice"},
		"a namespace that opted in": {func(s *doctor.Snapshot) {
			asksAsOnACK(s)
			optIn(s)
			s.Namespaces[0].Labels = map[string]string{"gpu.aliyun.com/legacy": "true"}
		}, "warning legacy-pods pod/p -n a: it waits"},
		"namespaces that may not be read": {func(s *doctor.Snapshot) {
			asksAsOnACK(s)
			s.Namespaces, s.Unread = nil, []string{"namespaces"}
		}, "note legacy-pods pod/p -n a: it waits"},
		"a tenant's pod in place of the plugin": {func(s *doctor.Snapshot) {
			s.Slices[0] = sliceOf("n1", "share")
			s.Pods[0].Namespace = "a"
		}, "error registered node/n1: it publishes GPUs, and no pod of gpu-kubelet-plugin is ready there"},
	} {
		t.Run(name, func(t *testing.T) {
			s := installed(t)
			migrating(s)
			test.change(s)
			expect.Says(t, told(doctor.Examine(s)), test.want)
		})
	}
}
