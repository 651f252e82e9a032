// SPDX-License-Identifier: Apache-2.0

package doctor_test

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/gpushare/dra-driver-gpushare/deviceclasses"
	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/devices"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
	"github.com/gpushare/dra-driver-gpushare/pkg/inspect/doctor"
	"github.com/gpushare/dra-driver-gpushare/pkg/inspect/published"
	"github.com/gpushare/dra-driver-gpushare/pkg/mode"
)

var now = time.Unix(1_000_000, 0)

const image = "registry.example/dra-driver-gpushare:v1"

func meta(name, component string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Namespace: "gpu", Name: name, UID: types.UID(name),
		Labels: map[string]string{"app.kubernetes.io/component": component}}
}

func podOf(component, node string) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: meta(component+"-"+node, component),
		Spec: corev1.PodSpec{NodeName: node, Containers: []corev1.Container{{Name: "main", Image: image}}},
		Status: corev1.PodStatus{Phase: corev1.PodRunning,
			Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}}}
}

func sliceOf(node string, m mode.Mode, options ...func(*devices.Options)) *resourceapi.ResourceSlice {
	return sliceOfMachine(node, m, &gpu.Machine{GPUs: []gpu.GPU{oneT4}}, options...)
}

var oneT4 = gpu.GPU{UUID: "GPU-0", Model: "Tesla-T4", MemoryMiB: 15360}

func sliceOfMachine(node string, m mode.Mode, machine *gpu.Machine,
	options ...func(*devices.Options)) *resourceapi.ResourceSlice {
	o := devices.Options{Pool: v1alpha1.PoolName(node), Mode: m, Slots: 20}
	for _, option := range options {
		option(&o)
	}
	all := published.Slices(node, devices.Build(machine, o))
	for _, slice := range all[1:] {
		all[0].Spec.Devices = append(all[0].Spec.Devices, slice.Spec.Devices...)
	}
	all[0].Spec.Pool.ResourceSliceCount = 1
	return all[0]
}

func namespaceOf(name string, labels map[string]string) *corev1.Namespace {
	return &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}}
}

func tainted(key, value string) func(*devices.Options) {
	return func(o *devices.Options) {
		o.Taints = []resourceapi.DeviceTaint{{Key: key, Value: value, Effect: resourceapi.DeviceTaintEffectNoSchedule}}
	}
}

func driverUnavailable(node string) corev1.Event {
	return corev1.Event{InvolvedObject: corev1.ObjectReference{Kind: "Node", Name: node}, Type: corev1.EventTypeWarning,
		Reason: v1alpha1.ReasonDriverUnavailable}
}

// invalidPlacement is what a node's plugin says of a label.
func invalidPlacement(node string) corev1.Event {
	return saidOf(node, v1alpha1.ReasonInvalidLabel, `node label ack.node.gpu.placement="sprad" is not a known value: `+
		"use binpack or spread; shares are placed by binpack", time.Minute)
}

// saidOf is a Warning of the plugin, from so long ago.
func saidOf(node, reason, message string, ago time.Duration) corev1.Event {
	e := driverUnavailable(node)
	e.Reason, e.Message, e.LastTimestamp = reason, message, metav1.NewTime(now.Add(-ago))
	return e
}

// writtenAgo has the API server have written an Event so long ago, by its own clock.
func writtenAgo(ago time.Duration, e corev1.Event) corev1.Event {
	first, last := metav1.NewTime(now.Add(-50*time.Hour)), metav1.NewTime(now.Add(-ago))
	e.ManagedFields = []metav1.ManagedFieldsEntry{{Time: &first}, {Time: &last}, {}}
	return e
}

// unreadyLeader adds a pod of the controller that is not ready since then.
func unreadyLeader(s *doctor.Snapshot, since time.Time) {
	s.Deployments[0].Spec.Replicas = ptr.To(int32(2))
	leader := podOf("gpu-compat-controller", "n1")
	leader.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionFalse,
		LastTransitionTime: metav1.NewTime(since)}}
	s.Pods = append(s.Pods, leader)
}

func nodeOf(name, label string) *corev1.Node {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{}}}
	if label != "" {
		n.Labels["ack.node.gpu.schedule"] = label
	}
	return n
}

func claimOf(pod string) *resourceapi.ResourceClaim {
	c := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "c"}}
	c.Status.Allocation = &resourceapi.AllocationResult{Devices: resourceapi.DeviceAllocationResult{
		Results: []resourceapi.DeviceRequestAllocationResult{{Driver: v1alpha1.DriverName, Pool: "n1/gpu",
			Device: "gpu-0-share"}}}}
	c.Status.ReservedFor = []resourceapi.ResourceClaimConsumerReference{{Resource: "pods", Name: pod,
		UID: types.UID(pod)}}
	return c
}

// installed is a cluster in order: the node n1 shares a GPU, n2 has none.
func installed(t *testing.T) *doctor.Snapshot {
	t.Helper()
	classes, err := deviceclasses.All()
	expect.NoError(t, err)
	s := &doctor.Snapshot{
		Now: now, ServerVersion: "v1.37.1", Classes: classes,
		SchedulerRole: &rbacv1.ClusterRole{Rules: []rbacv1.PolicyRule{{Resources: []string{"nodes"}},
			{Resources: []string{"resourceclaims/binding"}}}},
		Nodes:      []*corev1.Node{nodeOf("n1", "share"), nodeOf("n2", "")},
		Namespaces: []*corev1.Namespace{namespaceOf("a", nil)},
		Pods: []*corev1.Pod{podOf("gpu-kubelet-plugin", "n1"), podOf("gpu-kubelet-plugin", "n2"),
			podOf("gpu-compat-controller", "n2"), {ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "p", UID: "p"}}},
		DaemonSets: []*appsv1.DaemonSet{{ObjectMeta: meta("gpu-kubelet-plugin", "gpu-kubelet-plugin"),
			Status: appsv1.DaemonSetStatus{DesiredNumberScheduled: 2, NumberReady: 2}}},
		Deployments: []*appsv1.Deployment{{ObjectMeta: meta("gpu-compat-controller", "gpu-compat-controller"),
			Status: appsv1.DeploymentStatus{ReadyReplicas: 1}}},
		Slices: []*resourceapi.ResourceSlice{sliceOf("n1", mode.Share), sliceOf("n2", mode.Exclusive)},
		Claims: []*resourceapi.ResourceClaim{claimOf("p")},
	}
	s.Slices[1].Spec.Devices = nil
	for name, kind := range policyNames(t) {
		binding := metav1.ObjectMeta{Name: name}
		if kind == "MutatingAdmissionPolicy" {
			s.Mutating = append(s.Mutating, &admissionv1.MutatingAdmissionPolicy{ObjectMeta: binding})
			s.MutatingBindings = append(s.MutatingBindings, &admissionv1.MutatingAdmissionPolicyBinding{ObjectMeta: binding,
				Spec: admissionv1.MutatingAdmissionPolicyBindingSpec{PolicyName: name}})
			continue
		}
		s.Validating = append(s.Validating, &admissionv1.ValidatingAdmissionPolicy{ObjectMeta: binding})
		s.ValidatingBindings = append(s.ValidatingBindings, &admissionv1.ValidatingAdmissionPolicyBinding{
			ObjectMeta: binding, Spec: admissionv1.ValidatingAdmissionPolicyBindingSpec{PolicyName: name}})
	}
	return s
}

// policyNames are the policies of deployments/manifests, by their kinds.
func policyNames(t *testing.T) map[string]string {
	t.Helper()
	policy := regexp.MustCompile(`(?m)^kind: (\w+AdmissionPolicy)\nmetadata:\n  name: (\S+)`)
	out := map[string]string{}
	err := filepath.WalkDir("../../../deployments/manifests", func(path string, _ fs.DirEntry, err error) error {
		if err != nil || filepath.Ext(path) != ".yaml" {
			return err
		}
		text, err := os.ReadFile(path)
		for _, found := range policy.FindAllStringSubmatch(string(text), -1) {
			out[found[2]] = found[1]
		}
		return err
	})
	if err != nil || len(out) < 20 {
		t.Fatalf("found %d policies: %v", len(out), err)
	}
	return out
}

// foundBy are the findings of one check.
func foundBy(check string, s *doctor.Snapshot) []doctor.Finding {
	return slices.DeleteFunc(doctor.Examine(s).Findings, func(f doctor.Finding) bool { return f.Check != check })
}

func told(r *doctor.Report) string {
	var lines []string
	for _, f := range r.Findings {
		lines = append(lines, fmt.Sprintf("%s %s %s: %s", f.Level, f.Check, f.Object, f.Text))
	}
	return strings.Join(lines, "\n")
}

func TestNothingIsFoundWhereAllIsInOrder(t *testing.T) {
	r := doctor.Examine(installed(t))
	if len(r.Findings) > 0 || !r.Sound() || len(r.Checks) < 10 {
		t.Errorf("found\n%s", told(r))
	}
}

// Its plugin publishes nothing: there are no GPUs to read.
func TestNodeWithoutTheNVIDIADriverIsInOrder(t *testing.T) {
	s := installed(t)
	s.Slices, s.NodeEvents = s.Slices[:1], []corev1.Event{driverUnavailable("n2")}
	if r := doctor.Examine(s); len(r.Findings) > 0 {
		t.Errorf("found\n%s", told(r))
	}
}

func TestFindings(t *testing.T) {
	old := metav1.NewTime(now.Add(-time.Hour))
	for name, test := range map[string]struct {
		change func(s *doctor.Snapshot)
		want   string
	}{
		"a list that may not be read": {func(s *doctor.Snapshot) { s.Unread, s.Nodes = []string{"nodes"}, nil },
			"warning rights : you may not list nodes: what depends on them was not checked"},
		"a list that is not served": {func(s *doctor.Snapshot) { s.Unserved, s.Nodes = []string{"nodes"}, nil },
			"warning rights : this Kubernetes does not serve nodes: what depends on them was not checked"},
		"an old Kubernetes": {func(s *doctor.Snapshot) { s.ServerVersion = "v1.34.4" },
			"error kubernetes : the API server is Kubernetes v1.34.4: shares"},
		"a plugin that is not ready": {func(s *doctor.Snapshot) {
			s.DaemonSets[0].Status.NumberReady = 1
			s.Pods[1].Status.Conditions = nil
			s.Pods[1].Status.ContainerStatuses = []corev1.ContainerStatus{{State: corev1.ContainerState{
				Waiting: &corev1.ContainerStateWaiting{Reason: "ImagePullBackOff"}}}}
			s.Slices = s.Slices[:1]
		}, "error pods daemonset/gpu-kubelet-plugin -n gpu: 1 of 2 pods are ready: pod gpu-kubelet-plugin-n2 on node n2 is " +
			"in ImagePullBackOff"},
		"a plugin whose pods are refused": {func(s *doctor.Snapshot) {
			s.DaemonSets[0].Status.NumberReady = 0
			s.Pods, s.Slices = s.Pods[2:], nil
		}, "error pods daemonset/gpu-kubelet-plugin -n gpu: 0 of 2 pods are ready: 2 are not created"},
		"a controller whose pods are refused": {func(s *doctor.Snapshot) {
			s.Deployments[0].Status = appsv1.DeploymentStatus{Conditions: []appsv1.DeploymentCondition{{
				Type: appsv1.DeploymentReplicaFailure, Status: corev1.ConditionTrue, Message: "pods is forbidden: exceeded quota"}}}
			s.Pods = slices.Delete(s.Pods, 2, 3)
		}, "error pods deployment/gpu-compat-controller -n gpu: no pod of it is ready: legacy pods are not converted, and " +
			"nobody says why pods wait: 1 is not created: pods is forbidden: exceeded quota"},
		"a driver that is installed twice": {func(s *doctor.Snapshot) {
			again := s.DaemonSets[0].DeepCopy()
			again.Namespace = "kube-system"
			s.DaemonSets = append(s.DaemonSets, again)
		}, "error pods : gpu-kubelet-plugin is installed in the namespaces gpu, kube-system"},
		"no controller that is ready": {func(s *doctor.Snapshot) { s.Deployments[0].Status.ReadyReplicas = 0 },
			"error pods deployment/gpu-compat-controller -n gpu: no pod of it is ready"},
		"a leader that is not ready": {func(s *doctor.Snapshot) { unreadyLeader(s, now.Add(-time.Hour)) },
			"warning pods deployment/gpu-compat-controller -n gpu: 1 of 2 pods are ready: pod gpu-compat-controller-n1 on " +
				"node n1 is not ready"},
		"no driver": {func(s *doctor.Snapshot) { s.DaemonSets = nil }, "error pods : gpu-kubelet-plugin is not installed"},
		"two versions": {func(s *doctor.Snapshot) { s.Pods[2].Spec.Containers[0].Image = image + ".1" },
			"warning versions : the driver's pods run different images: " + image + " (gpu-kubelet-plugin); " + image +
				".1 (gpu-compat-controller)"},
		"a node that publishes nothing": {func(s *doctor.Snapshot) { s.Slices = s.Slices[:1] },
			"error registered node/n2: gpu-kubelet-plugin runs there and has published nothing"},
		"a node whose NVIDIA driver does not come": {func(s *doctor.Snapshot) {
			s.Slices, s.NodeEvents = s.Slices[1:], []corev1.Event{driverUnavailable("n1")}
		}, "error registered node/n1: it has the label ack.node.gpu.schedule=share and offers no GPUs"},
		"a node without GPUs that is to have some": {func(s *doctor.Snapshot) { s.Slices[0].Spec.Devices = nil },
			"error registered node/n1: it has the label ack.node.gpu.schedule=share and offers no GPUs"},
		"a GPU node without a label that offers nothing": {func(s *doctor.Snapshot) {
			s.Nodes[1].Labels["aliyun.accelerator/nvidia_name"] = "Tesla-T4"
			s.NodeEvents = []corev1.Event{saidOf("n2", v1alpha1.ReasonModeNotServed, "it has no CDI directory", 20*time.Minute)}
		}, "error registered node/n2: it has the label aliyun.accelerator/nvidia_name=Tesla-T4 and offers no GPUs: " +
			"GPUModeNotServed: it has no CDI directory"},
		"a GPU node without a label whose NVIDIA driver is gone": {func(s *doctor.Snapshot) {
			s.Nodes[1].Labels["aliyun.accelerator/nvidia_name"] = "Tesla-T4"
			s.Slices, s.NodeEvents = s.Slices[:1], []corev1.Event{driverUnavailable("n2")}
		}, "error registered node/n2: it has the label aliyun.accelerator/nvidia_name=Tesla-T4 and offers no GPUs"},
		"a node without a label that says why it offers nothing": {func(s *doctor.Snapshot) {
			s.NodeEvents = []corev1.Event{saidOf("n2", v1alpha1.ReasonLeftOut, "Not offered: GPU 0 (): Lost: gone", time.Minute)}
		}, "error registered node/n2: it offers no GPUs: GPULeftOut: Not offered: GPU 0 (): Lost: gone"},
		"a node whose clock is two days behind": {func(s *doctor.Snapshot) {
			s.NodeEvents = []corev1.Event{writtenAgo(time.Minute, saidOf("n2", v1alpha1.ReasonLeftOut,
				"Not offered: GPU 0 (): Lost: gone", 48*time.Hour))}
		}, "error registered node/n2: it offers no GPUs: GPULeftOut: Not offered: GPU 0 (): Lost: gone"},
		"a leader on a node whose clock is ahead": {func(s *doctor.Snapshot) { unreadyLeader(s, now.Add(time.Hour)) },
			"warning pods deployment/gpu-compat-controller -n gpu: 1 of 2 pods are ready: pod gpu-compat-controller-n1 on " +
				"node n1 is not ready"},
		"a node without the plugin": {func(s *doctor.Snapshot) { s.Pods, s.Slices = s.Pods[1:], s.Slices[1:] },
			"error registered node/n1: it has the label ack.node.gpu.schedule=share, and no pod of gpu-kubelet-plugin is " +
				"ready there"},
		"a node whose plugin is gone": {func(s *doctor.Snapshot) { s.Pods = s.Pods[1:] },
			"error registered node/n1: it publishes GPUs, and no pod of gpu-kubelet-plugin is ready there"},
		"another mode than the label's": {func(s *doctor.Snapshot) { s.Nodes[0].Labels["ack.node.gpu.schedule"] = "mps" },
			"error modes node/n1: it has the label ack.node.gpu.schedule=mps and offers share"},
		"a mode that is about to change": {func(s *doctor.Snapshot) {
			s.Nodes[0].Labels["ack.node.gpu.schedule"] = "mps"
			s.Slices[0] = sliceOf("n1", mode.Share, tainted(v1alpha1.TaintSwitching, ""))
		}, "warning modes node/n1: it has the label ack.node.gpu.schedule=mps, offers share, and takes no new claims"},
		"a label that nobody knows": {func(s *doctor.Snapshot) { s.Nodes[0].Labels["ack.node.gpu.schedule"] = "shared" },
			`error modes node/n1: node label ack.node.gpu.schedule="shared" is not a known value`},
		"a placement that nobody knows": {func(s *doctor.Snapshot) {
			s.Nodes[0].Labels["ack.node.gpu.placement"] = "sprad"
			s.NodeEvents = []corev1.Event{invalidPlacement("n1")}
		}, `warning modes node/n1: node label ack.node.gpu.placement="sprad" is not a known value`},
		"a disabled node that offers GPUs": {func(s *doctor.Snapshot) { s.Nodes[0].Labels[labelMode] = "disabled" },
			"error modes node/n1: it has the label ack.node.gpu.schedule=disabled and offers share"},
		"a disabled node that waits": {func(s *doctor.Snapshot) {
			s.Nodes[0].Labels[labelMode] = "disabled"
			s.Slices[0] = sliceOf("n1", mode.Share, tainted(v1alpha1.TaintSwitching, ""))
		}, "warning modes node/n1: it has the label ack.node.gpu.schedule=disabled, offers share, and takes no new claims"},
		"a device plugin": {func(s *doctor.Snapshot) {
			s.Nodes[0].Status.Allocatable = corev1.ResourceList{"nvidia.com/gpu": resource.MustParse("1")}
		}, "error device-plugin node/n1: a device plugin serves nvidia.com/gpu there"},
		"ACK's device plugin": {func(s *doctor.Snapshot) {
			s.Nodes[0].Status.Allocatable = corev1.ResourceList{"aliyun.com/gpu-mem": resource.MustParse("15")}
		}, "error device-plugin node/n1: a device plugin serves aliyun.com/gpu-mem there"},
		"another DRA driver": {func(s *doctor.Snapshot) {
			s.Slices[0] = sliceOf("n1", mode.Share, tainted(v1alpha1.TaintOtherDriver, "gpu.nvidia.com"))
		}, "error other-drivers node/n1: another DRA driver publishes GPUs of it, too, which take no claims of this one: " +
			"gpu-0 (gpu.nvidia.com)"},
		"slices that nobody counts": {func(s *doctor.Snapshot) {
			s.Slices = append(s.Slices, s.Slices[0].DeepCopy())
		}, "warning pools node/n1: it has 1 ResourceSlices beyond what its pool says: it takes no new claims, and pods"},
		"a slice of 64": {func(s *doctor.Snapshot) { s.Slices[0].Spec.Pool.ResourceSliceCount = 64 },
			"warning pools node/n1: it has not all ResourceSlices that its pool says, 63 are missing"},
		"a right to all of a claim's status": {func(s *doctor.Snapshot) { s.SchedulerRole.Rules = s.SchedulerRole.Rules[:1] },
			"warning kubernetes : the API server runs without the feature gate DRAResourceClaimGranularStatusAuthorization"},
		"an unhealthy GPU": {func(s *doctor.Snapshot) {
			s.Slices[0] = sliceOf("n1", mode.Share, tainted(v1alpha1.TaintUnhealthy, "xid-79"))
		}, "error health node/n1: unhealthy: gpu-0 xid-79"},
		"GPUs that are left out": {func(s *doctor.Snapshot) {
			s.Slices[0] = sliceOfMachine("n1", mode.Share, &gpu.Machine{GPUs: []gpu.GPU{oneT4, {Index: 2, UUID: "GPU-2",
				Model: "Tesla-T4", MemoryMiB: 15360}}})
			s.NodeEvents = []corev1.Event{
				saidOf("n1", v1alpha1.ReasonLeftOut, "Not offered: GPU 2 (GPU-2): Unreadable: slow", 25*time.Minute),
				saidOf("n1", v1alpha1.ReasonLeftOut, "Not offered: GPU 1 (GPU-1): Lost: gone; GPU 3 (): Unreadable: slow",
					20*time.Minute)}
		}, "error health node/n1: not offered: gpu-1 Lost, gpu-3 Unreadable"},
		"a class that is missing": {func(s *doctor.Snapshot) { s.Classes = s.Classes[1:] },
			"error classes : DeviceClasses are missing: cgpu.gpu.aliyun.com"},
		"a class that was changed": {func(s *doctor.Snapshot) {
			changed := s.Classes[0].DeepCopy()
			changed.Spec.Selectors[0].CEL.Expression = "true"
			s.Classes[0] = changed
		}, "warning classes deviceclass/cgpu.gpu.aliyun.com: its selectors are not those"},
		"another driver's class for the same resource": {func(s *doctor.Snapshot) {
			s.Classes = append(s.Classes, &resourceapi.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: "gpu.nvidia.com"},
				Spec: resourceapi.DeviceClassSpec{ExtendedResourceName: ptr.To("nvidia.com/gpu")}})
		}, "warning classes deviceclass/gpu.nvidia.com: it has the extended resource nvidia.com/gpu, as the class " +
			"exclusive.gpu.aliyun.com: pods"},
		"no policies": {func(s *doctor.Snapshot) {
			s.Validating, s.ValidatingBindings = nil, nil
		}, "error policies validatingadmissionpolicy/gpushare-allocated-claims-stay: missing: " +
			"gpushare-allocated-claims-stay, " +
			"gpushare-claim-advice"},
		"a policy that nothing binds": {func(s *doctor.Snapshot) { s.MutatingBindings = nil },
			"warning policies mutatingadmissionpolicy/gpushare-legacy-apply-again: bound by nothing: " +
				"gpushare-legacy-apply-again, gpushare-legacy-convert"},
		"no bound of what a pod may cost the scheduler": {func(s *doctor.Snapshot) {
			s.ValidatingBindings = slices.DeleteFunc(s.ValidatingBindings,
				func(b *admissionv1.ValidatingAdmissionPolicyBinding) bool {
					return b.Spec.PolicyName == doctor.SearchCost[0]
				})
		}, "warning policies validatingadmissionpolicy/gpushare-search-cost: bound by nothing: gpushare-search-cost (what " +
			"a pod may cost the scheduler is not bounded"},
		"a claim older than the bounds": {func(s *doctor.Snapshot) {
			s.Dear = []doctor.Refused{{Object: "resourceclaim/c -n a", Why: "17 requests"}}
		}, "warning search-cost resourceclaim/c -n a: it is older than the policies that bound what a pod may cost the " +
			"scheduler, and would be refused now: 17 requests"},
		"a claim of a pod that is gone": {func(s *doctor.Snapshot) { s.Claims[0].Status.ReservedFor[0].UID = "another" },
			"warning claims resourceclaim/c -n a: it is reserved for pods that are gone: p"},
		"a claim that does not go": {func(s *doctor.Snapshot) {
			s.Claims[0].DeletionTimestamp, s.Claims[0].Finalizers = &old, []string{"resource.kubernetes.io/delete-protection"}
		}, "warning claims resourceclaim/c -n a: it has been deleted 1h0m0s ago and still holds its GPUs (finalizers: " +
			"resource.kubernetes.io/delete-protection)"},
		"a pod that was not converted": {func(s *doctor.Snapshot) {
			s.Pods[3].Spec.Containers = []corev1.Container{{Resources: corev1.ResourceRequirements{
				Limits: corev1.ResourceList{"aliyun.com/gpu-mem": resource.MustParse("3")}}}}
		}, "warning legacy-pods pod/p -n a: it waits, asks for aliyun.com/gpu-mem, and was not converted"},
	} {
		t.Run(name, func(t *testing.T) {
			s := installed(t)
			test.change(s)
			r := doctor.Examine(s)
			if !strings.Contains(told(r), test.want) || r.Sound() {
				t.Errorf("found\n%s\nwant %s", told(r), test.want)
			}
			for _, f := range r.Findings {
				if f.Do == "" || f.Check == "" {
					t.Errorf("%+v does not say what to do", f)
				}
			}
		})
	}
}
