// SPDX-License-Identifier: Apache-2.0

package plan_test

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/ptr"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/pkg/mode"
)

// admitted plans workloads as the API server has made them.
func (s *site) admitted(t *testing.T, text string, change func(*corev1.PodTemplateSpec)) {
	t.Helper()
	s.read(t, text)
	for i := range s.Workloads {
		s.Workloads[i].Admitted = s.Workloads[i].Template.DeepCopy()
		change(s.Workloads[i].Admitted)
	}
}

// withClaim is what the policies make of a pod: the claim is of a template that is not there yet.
func withClaim(template string) func(*corev1.PodTemplateSpec) {
	return func(of *corev1.PodTemplateSpec) {
		of.Spec.Containers[0].Resources = corev1.ResourceRequirements{}
		of.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "g", ResourceClaimTemplateName: ptr.To(template)}}
	}
}

func TestPodsArePlannedAsAdmitted(t *testing.T) {
	for name, test := range map[string]struct {
		change func(*corev1.PodTemplateSpec)
		want   string
		say    string
	}{
		// What a policy makes of the amount counts, not what the manifest says.
		"other claim":        {withClaim("gpushare.mem.main.15"), "train-0=n1:gpu-0-share train-1=-", "memory 15Gi"},
		"template of nobody": {withClaim("gpushare.mem.main.odd"), "train-0=- train-1=-", "gpushare.mem.main.odd does not"},
		"left as it is": {func(*corev1.PodTemplateSpec) {}, "train-0=- train-1=-",
			"it would not be converted: the cluster's policies leave it as it is"},
		"left by its label": {func(of *corev1.PodTemplateSpec) { of.Labels["gpu.aliyun.com/legacy"] = "false" },
			"train-0=- train-1=-", "it would not be converted: it opted out by its label"},
		"default request": {func(of *corev1.PodTemplateSpec) {
			withClaim("gpushare.mem.main.2")(of)
			of.Spec.Containers[0].Resources.Requests = corev1.ResourceList{"cpu": resource.MustParse("2")}
		}, "train-0=n1:gpu-0-share train-1=-", "cpu: asked 2, free 1"},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSite(t)
			s.node("n1", 1, mode.Share, allocatable(map[corev1.ResourceName]string{"cpu": "3", "pods": "9"}))
			s.admitted(t, workload("Deployment", 2, "aliyun.com/gpu-mem: 3"), test.change)
			made := s.plan(t)
			expect.Equal(t, test.want, strings.Join(verdicts(made), " "), "verdicts")
			expect.Says(t, printed(t, made), test.say)
		})
	}
}

func TestPodsThatAdmissionRefusesWait(t *testing.T) {
	s := newSite(t)
	s.node("n1", 1, mode.Share)
	s.read(t, workload("Deployment", 2, "aliyun.com/gpu-mem: 3"))
	s.Workloads[0].Refused = "it would be refused: exceeded quota"
	made := s.plan(t)
	expect.Equal(t, 2, made.Waits, "pods that wait")
	expect.Says(t, printed(t, made), "(m.yaml, document 1), 2 pods: it would be refused: exceeded quota.")
}

// A gang is held where the API server gives its pods to a PodGroup.
func TestGangsAreHeldAsAdmitted(t *testing.T) {
	const labels = `, pod-group.scheduling.sigs.k8s.io/name: g, pod-group.scheduling.sigs.k8s.io/min-available: "3"`
	for held, want := range map[bool]int{true: 0, false: 2} {
		s := newSite(t)
		s.node("n1", 1, mode.Share)
		s.admitted(t, workload("Deployment", 3, "aliyun.com/gpu-mem: 7", labels), func(of *corev1.PodTemplateSpec) {
			withClaim("gpushare.mem.main.7")(of)
			if held {
				of.Spec.SchedulingGroup = &corev1.PodSchedulingGroup{PodGroupName: ptr.To("g")}
			}
		})
		made := s.plan(t)
		if made.Fits != want || len(made.Notes) > 0 {
			t.Errorf("held %t: %d fit, want %d; notes %q", held, made.Fits, want, made.Notes)
		}
	}
	s := newSite(t)
	s.node("n1", 1, mode.Share)
	s.admitted(t, workload("Deployment", 1, "aliyun.com/gpu-mem: 7"), func(of *corev1.PodTemplateSpec) {
		of.Spec.SchedulingGroup = &corev1.PodSchedulingGroup{PodGroupName: ptr.To("own")}
	})
	expect.Says(t, strings.Join(s.plan(t).Notes, "\n"),
		"Not looked at: how many pods of its PodGroup are needed at once (deployment/train).")
}

// Of the nodes with room a pod takes those that its author prefers.
func TestPodsGoWhereTheyPrefer(t *testing.T) {
	prefers := func(effect corev1.NodeSelectorOperator) *corev1.Affinity {
		return &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{
			PreferredDuringSchedulingIgnoredDuringExecution: []corev1.PreferredSchedulingTerm{{Weight: 1,
				Preference: corev1.NodeSelectorTerm{MatchExpressions: []corev1.NodeSelectorRequirement{{
					Key: "kubernetes.io/hostname", Operator: effect, Values: []string{"n1"}}}}}}}}
	}
	for name, test := range map[string]struct {
		own  *corev1.Affinity
		want string
	}{
		"nothing":              {nil, "n1 n2 n1"},
		"prefers a node":       {prefers(corev1.NodeSelectorOpIn), "n1 n1 n1"},
		"prefers another node": {prefers(corev1.NodeSelectorOpNotIn), "n2 n2 n2"},
		"cannot be read":       {prefers("odd"), "n1 n2 n1"},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSite(t)
			for _, node := range []string{"n1", "n2"} {
				s.node(node, 1, mode.Share, allocatable(map[corev1.ResourceName]string{"cpu": "3", "pods": "9"}))
			}
			s.admitted(t, workload("Deployment", 3, "aliyun.com/gpu-mem: 3"), func(of *corev1.PodTemplateSpec) {
				withClaim("gpushare.mem.main.3")(of)
				of.Spec.Affinity = test.own
			})
			var got []string
			made := s.plan(t)
			for _, pod := range made.Pods {
				got = append(got, pod.Node)
			}
			expect.Equal(t, test.want, strings.Join(got, " "), "verdicts")
			expect.Equal(t, false, strings.Contains(strings.Join(made.Notes, "\n"), "affinity"), "notes %q", made.Notes)
		})
	}
}

// What policies would do is not known without a cluster, and said.
func TestWhatPoliciesWouldDoIsNotLookedAt(t *testing.T) {
	s := newSite(t)
	s.node("n1", 1, mode.Share)
	s.read(t, workload("Deployment", 1, "cpu: 1", "}, annotations: {cpuset-scheduler: \"true\", "+
		"alibabacloud.com/burst-resource: eci"))
	unknown := []string{"Not looked at: CPUs of a container's own (deployment/train).",
		"Not looked at: virtual nodes (annotation alibabacloud.com/burst-resource) (deployment/train)."}
	expect.Equal(t, unknown, s.plan(t).Notes, "notes")
	s.Workloads[0].Admitted = &s.Workloads[0].Template
	expect.Equal(t, nil, s.plan(t).Notes, "notes")
}
