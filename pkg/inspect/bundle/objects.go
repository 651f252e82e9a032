// SPDX-License-Identifier: Apache-2.0

package bundle

import (
	"slices"
	"strings"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpushare/dra-driver-gpushare/pkg/apis/ack"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/inspect/doctor"
	"github.com/gpushare/dra-driver-gpushare/pkg/legacy"
)

// What the driver's own objects are known by.
const (
	labelName  = "app.kubernetes.io/name"
	driverName = "dra-driver-gpushare"
)

// known reports whether a label or an annotation is the driver's, or one of ACK's that it uses.
func known(key string) bool {
	prefix, _, _ := strings.Cut(key, "/")
	return prefix == v1alpha1.DriverName || strings.HasSuffix(prefix, "."+v1alpha1.DriverName) ||
		prefix == "pod-group.scheduling.sigs.k8s.io" || slices.Contains(ack.Annotations(), key) ||
		slices.Contains([]string{ack.PodLabelCount, ack.PodLabelPlacement, ack.AnnotationCPUSet, ack.AnnotationBurst,
			ack.AnnotationGang, ack.AnnotationGangMin, labelName, "app.kubernetes.io/component",
			"app.kubernetes.io/version", "app.kubernetes.io/managed-by"}, key)
}

// meta is what is kept of an object's metadata.
func meta(m *metav1.ObjectMeta) metav1.ObjectMeta {
	return metav1.ObjectMeta{
		Name: m.Name, Namespace: m.Namespace, UID: m.UID, Generation: m.Generation, ResourceVersion: m.ResourceVersion,
		CreationTimestamp: m.CreationTimestamp, DeletionTimestamp: m.DeletionTimestamp, Finalizers: m.Finalizers,
		OwnerReferences: m.OwnerReferences, Labels: pick(m.Labels), Annotations: pick(m.Annotations),
	}
}

func nodeOf(n *corev1.Node) *corev1.Node {
	out := &corev1.Node{ObjectMeta: meta(&n.ObjectMeta)}
	out.Labels = n.Labels
	out.Spec.Unschedulable, out.Spec.Taints = n.Spec.Unschedulable, n.Spec.Taints
	out.Status = corev1.NodeStatus{Capacity: n.Status.Capacity, Allocatable: n.Status.Allocatable,
		Conditions: n.Status.Conditions, NodeInfo: versionsOf(n.Status.NodeInfo), Features: n.Status.Features}
	return out
}

// versionsOf leaves out by what a machine can be told from others.
func versionsOf(i corev1.NodeSystemInfo) corev1.NodeSystemInfo {
	return corev1.NodeSystemInfo{KernelVersion: i.KernelVersion, OSImage: i.OSImage, Architecture: i.Architecture,
		OperatingSystem: i.OperatingSystem, ContainerRuntimeVersion: i.ContainerRuntimeVersion,
		KubeletVersion: i.KubeletVersion}
}

// withoutAddresses are the nodes for the table, which would show them.
func withoutAddresses(nodes []*corev1.Node) []*corev1.Node {
	out := slices.Clone(nodes)
	for i, node := range out {
		if len(node.Status.Addresses) > 0 {
			out[i] = node.DeepCopy()
			out[i].Status.Addresses = nil
		}
	}
	return out
}

func sliceOf(s *resourceapi.ResourceSlice) *resourceapi.ResourceSlice {
	return &resourceapi.ResourceSlice{ObjectMeta: meta(&s.ObjectMeta), Spec: s.Spec}
}

func ruleOf(r *resourceapi.DeviceTaintRule) *resourceapi.DeviceTaintRule {
	return &resourceapi.DeviceTaintRule{ObjectMeta: meta(&r.ObjectMeta), Spec: r.Spec, Status: r.Status}
}

// opaque leaves out the parameters of other drivers.
func opaque(c resourceapi.DeviceConfiguration) resourceapi.DeviceConfiguration {
	if c.Opaque == nil || c.Opaque.Driver == v1alpha1.DriverName {
		return c
	}
	return resourceapi.DeviceConfiguration{Opaque: &resourceapi.OpaqueDeviceConfiguration{Driver: c.Opaque.Driver}}
}

func classOf(c *resourceapi.DeviceClass) *resourceapi.DeviceClass {
	out := &resourceapi.DeviceClass{ObjectMeta: meta(&c.ObjectMeta), Spec: *c.Spec.DeepCopy()}
	for i := range out.Spec.Config {
		out.Spec.Config[i].DeviceConfiguration = opaque(out.Spec.Config[i].DeviceConfiguration)
	}
	return out
}

func specOf(s resourceapi.ResourceClaimSpec) resourceapi.ResourceClaimSpec {
	out := *s.DeepCopy()
	for i := range out.Devices.Config {
		out.Devices.Config[i].DeviceConfiguration = opaque(out.Devices.Config[i].DeviceConfiguration)
	}
	return out
}

func claimOf(c *resourceapi.ResourceClaim) *resourceapi.ResourceClaim {
	out := &resourceapi.ResourceClaim{ObjectMeta: meta(&c.ObjectMeta), Spec: specOf(c.Spec), Status: *c.Status.DeepCopy()}
	if a := out.Status.Allocation; a != nil {
		for i := range a.Devices.Config {
			a.Devices.Config[i].DeviceConfiguration = opaque(a.Devices.Config[i].DeviceConfiguration)
		}
	}
	out.Status.Devices = slices.DeleteFunc(out.Status.Devices,
		func(d resourceapi.AllocatedDeviceStatus) bool { return d.Driver != v1alpha1.DriverName })
	return out
}

func templateOf(t *resourceapi.ResourceClaimTemplate) *resourceapi.ResourceClaimTemplate {
	return &resourceapi.ResourceClaimTemplate{ObjectMeta: meta(&t.ObjectMeta), Spec: resourceapi.ResourceClaimTemplateSpec{
		ObjectMeta: metav1.ObjectMeta{Labels: pick(t.Spec.Labels), Annotations: pick(t.Spec.Annotations)},
		Spec:       specOf(t.Spec.Spec)}}
}

// concerns reports whether a pod is the driver's, or uses or asks for GPUs.
func (d Driver) concerns(p *corev1.Pod) bool {
	return d.Owns(p, &p.Spec) || len(p.Spec.ResourceClaims) > 0 || p.Status.ExtendedResourceClaimStatus != nil ||
		legacy.Asks(p) || slices.ContainsFunc(p.Spec.Containers, func(c corev1.Container) bool {
		for name := range c.Resources.Limits {
			if strings.Contains(string(name), "/") {
				return true
			}
		}
		return false
	})
}

// podOf is a pod without what it does.
func podOf(p *corev1.Pod) *corev1.Pod {
	containers := func(all []corev1.Container) []corev1.Container {
		var out []corev1.Container
		for _, c := range all {
			out = append(out, corev1.Container{Name: c.Name, Resources: c.Resources, RestartPolicy: c.RestartPolicy})
		}
		return out
	}
	statuses := func(all []corev1.ContainerStatus) []corev1.ContainerStatus {
		var out []corev1.ContainerStatus
		for _, c := range all {
			out = append(out, corev1.ContainerStatus{Name: c.Name, Ready: c.Ready, RestartCount: c.RestartCount,
				Started: c.Started, State: stateOf(c.State), LastTerminationState: stateOf(c.LastTerminationState)})
		}
		return out
	}
	return &corev1.Pod{
		ObjectMeta: meta(&p.ObjectMeta),
		Spec: corev1.PodSpec{
			NodeName: p.Spec.NodeName, NodeSelector: p.Spec.NodeSelector, Tolerations: p.Spec.Tolerations,
			SchedulerName: p.Spec.SchedulerName, SchedulingGates: p.Spec.SchedulingGates, Priority: p.Spec.Priority,
			ResourceClaims: p.Spec.ResourceClaims, RestartPolicy: p.Spec.RestartPolicy, Overhead: p.Spec.Overhead,
			Containers: containers(p.Spec.Containers), InitContainers: containers(p.Spec.InitContainers),
		},
		Status: corev1.PodStatus{
			Phase: p.Status.Phase, Reason: p.Status.Reason, Conditions: conditionsOf(p.Status.Conditions),
			StartTime: p.Status.StartTime, QOSClass: p.Status.QOSClass,
			ResourceClaimStatuses:       p.Status.ResourceClaimStatuses,
			ExtendedResourceClaimStatus: p.Status.ExtendedResourceClaimStatus,
			ContainerStatuses:           statuses(p.Status.ContainerStatuses),
			InitContainerStatuses:       statuses(p.Status.InitContainerStatuses),
		},
	}
}

// conditionsOf keeps the words of the scheduler alone: what others write is not known.
func conditionsOf(all []corev1.PodCondition) []corev1.PodCondition {
	out := slices.Clone(all)
	for i := range out {
		if out[i].Type != corev1.PodScheduled {
			out[i].Message = ""
		}
	}
	return out
}

// stateOf leaves out messages: a program writes its own when it ends.
func stateOf(s corev1.ContainerState) corev1.ContainerState {
	s = *s.DeepCopy()
	if s.Waiting != nil {
		s.Waiting.Message = ""
	}
	if s.Terminated != nil {
		s.Terminated.Message = ""
	}
	return s
}

func eventOf(e *corev1.Event) *corev1.Event {
	return &corev1.Event{
		ObjectMeta:     metav1.ObjectMeta{Name: e.Name, Namespace: e.Namespace, CreationTimestamp: e.CreationTimestamp},
		InvolvedObject: e.InvolvedObject, Reason: e.Reason, Message: e.Message, Source: e.Source, Type: e.Type,
		FirstTimestamp: e.FirstTimestamp, LastTimestamp: e.LastTimestamp, EventTime: e.EventTime, Count: e.Count,
		Series: e.Series, ReportingController: e.ReportingController, ReportingInstance: e.ReportingInstance,
	}
}

// programOf is the template of the driver's pods.
func programOf(t corev1.PodTemplateSpec) corev1.PodTemplateSpec {
	out := corev1.PodTemplateSpec{ObjectMeta: meta(&t.ObjectMeta), Spec: *t.Spec.DeepCopy()}
	out.Spec.ImagePullSecrets = nil
	for _, containers := range [][]corev1.Container{out.Spec.Containers, out.Spec.InitContainers} {
		for i := range containers {
			for j := range containers[i].Env {
				e := &containers[i].Env[j]
				e.Value = valueOf(e.Name, e.Value)
			}
			containers[i].Command = arguments(containers[i].Command)
			containers[i].Args = arguments(containers[i].Args)
		}
	}
	return out
}

func daemonSetOf(d *appsv1.DaemonSet) *appsv1.DaemonSet {
	return &appsv1.DaemonSet{ObjectMeta: meta(&d.ObjectMeta), Status: d.Status, Spec: appsv1.DaemonSetSpec{
		Selector: d.Spec.Selector, Template: programOf(d.Spec.Template), UpdateStrategy: d.Spec.UpdateStrategy,
		MinReadySeconds: d.Spec.MinReadySeconds}}
}

func deploymentOf(d *appsv1.Deployment) *appsv1.Deployment {
	return &appsv1.Deployment{ObjectMeta: meta(&d.ObjectMeta), Status: d.Status, Spec: appsv1.DeploymentSpec{
		Replicas: d.Spec.Replicas, Selector: d.Spec.Selector, Template: programOf(d.Spec.Template),
		Strategy: d.Spec.Strategy, Paused: d.Spec.Paused}}
}

// configMapOf is one with the driver's settings.
func configMapOf(c *corev1.ConfigMap) *corev1.ConfigMap {
	out := &corev1.ConfigMap{ObjectMeta: meta(&c.ObjectMeta), Data: map[string]string{}}
	for key, value := range c.Data {
		out.Data[key] = valueOf(key, value)
	}
	return out
}

// policiesOf are the driver's admission policies and what binds them.
func policiesOf(s *doctor.Snapshot) any {
	return map[string]any{
		"mutatingAdmissionPolicies": owned(s.Mutating, func(p *admissionv1.MutatingAdmissionPolicy) any {
			return &admissionv1.MutatingAdmissionPolicy{ObjectMeta: meta(&p.ObjectMeta), Spec: p.Spec}
		}),
		"mutatingAdmissionPolicyBindings": owned(s.MutatingBindings, func(b *admissionv1.MutatingAdmissionPolicyBinding) any {
			return &admissionv1.MutatingAdmissionPolicyBinding{ObjectMeta: meta(&b.ObjectMeta), Spec: b.Spec}
		}),
		"validatingAdmissionPolicies": owned(s.Validating, func(p *admissionv1.ValidatingAdmissionPolicy) any {
			return &admissionv1.ValidatingAdmissionPolicy{ObjectMeta: meta(&p.ObjectMeta), Spec: p.Spec, Status: p.Status}
		}),
		"validatingAdmissionPolicyBindings": owned(s.ValidatingBindings,
			func(b *admissionv1.ValidatingAdmissionPolicyBinding) any {
				return &admissionv1.ValidatingAdmissionPolicyBinding{ObjectMeta: meta(&b.ObjectMeta), Spec: b.Spec}
			}),
	}
}

// owned returns the objects that belong to the driver's installation, as the bundle keeps them.
func owned[T metav1.Object](all []T, kept func(T) any) []any {
	var out []any
	for _, o := range all {
		if ofDriver(o) {
			out = append(out, kept(o))
		}
	}
	return out
}
