// SPDX-License-Identifier: Apache-2.0

package cluster_test

import (
	"errors"
	"maps"
	"slices"
	"strings"
	"testing"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/utils/ptr"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/pkg/inspect/cluster"
	"github.com/gpushare/dra-driver-gpushare/pkg/inspect/plan"
)

// wanted are manifests that name a claim and two templates, of which one is their own.
func wanted() plan.Manifests {
	pod := corev1.PodTemplateSpec{Spec: corev1.PodSpec{ResourceClaims: []corev1.PodResourceClaim{
		{Name: "a", ResourceClaimTemplateName: ptr.To("there")}, {Name: "b", ResourceClaimTemplateName: ptr.To("absent")},
		{Name: "c", ResourceClaimName: ptr.To("c")},
	}}}
	return plan.Manifests{
		Workloads: []plan.Workload{{Kind: "pod", Namespace: "team-b", Name: "p", Template: pod, Pods: 1}}}
}

func TestReadsWhatAPlanGoesBy(t *testing.T) {
	there := &resourceapi.ResourceClaimTemplate{ObjectMeta: metav1.ObjectMeta{Namespace: "team-b", Name: "there"}}
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "team-b"}}
	bound := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "x", Name: "bound"},
		Spec: corev1.PodSpec{NodeName: "n1"}}
	for name, test := range map[string]struct {
		forbidden  []string
		claims     int
		unread     string
		notes      []string
		namespaces int
	}{
		"all rights": {nil, 1, "", nil, 1},
		"few rights": {[]string{"list pods", "list nodes", "list resourceclaims", "get resourceclaimtemplates team-b",
			"get namespaces"}, 1, "Namespace/team-b ResourceClaimTemplate/team-b/absent ResourceClaimTemplate/team-b/there",
			[]string{"You may not read nodes", "You may not get namespace team-b", "CPU and memory of nodes are not looked at",
				"GPUs may be fuller"}, 0},
		"not even its claims": {[]string{"list resourceclaims", "list resourceclaims team-a", "get resourceclaims team-b"},
			0, "ResourceClaim/team-b/c", []string{"GPUs may be fuller"}, 1},
	} {
		t.Run(name, func(t *testing.T) {
			client := fake.NewClientset(append(objects(), there, namespace, bound)...)
			forbid(client, test.forbidden...)
			admits(t, client, func(*corev1.Pod) error { return nil })
			in, err := cluster.Reader{Client: client, Namespace: "team-a"}.PlanInput(t.Context(), wanted())
			expect.NoError(t, err)
			claims := 0
			for _, c := range in.Snapshot.Claims {
				if c.Namespace == "team-b" && c.Name == "c" {
					claims++
				}
			}
			if claims != test.claims || len(in.KnownNamespaces) != test.namespaces {
				t.Errorf("the claim is there %d times, namespaces %v", claims, in.KnownNamespaces)
			}
			expect.Equal(t, test.unread, strings.Join(slices.Sorted(maps.Keys(in.Unread)), " "), "unread")
			if test.unread == "" && (len(in.KnownTemplates) != 1 || !slices.ContainsFunc(in.Bound, func(p *corev1.Pod) bool {
				return p.Name == "bound"
			})) {
				t.Errorf("templates %v, pods %v", in.KnownTemplates, in.Bound)
			}
			expect.Equal(t, len(test.notes), len(in.Notes), "notes %q", in.Notes)
			expect.Says(t, strings.Join(in.Notes, "\n"), test.notes...)
		})
	}
}

// Which namespaces' pods are converted is the binding's to say, where pods as on ACK are planned.
func TestReadsWhatIsConverted(t *testing.T) {
	selector := &metav1.LabelSelector{MatchLabels: map[string]string{"gpu.aliyun.com/legacy": "true"}}
	binding := &admissionv1.MutatingAdmissionPolicyBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "gpushare-legacy-convert"}, Spec: admissionv1.
				MutatingAdmissionPolicyBindingSpec{MatchResources: &admissionv1.MatchResources{NamespaceSelector: selector}}}
	asks := plan.Manifests{Workloads: []plan.Workload{{Kind: "pod", Namespace: "team-b", Name: "p", Pods: 1,
		Template: corev1.PodTemplateSpec{Spec: corev1.PodSpec{Containers: []corev1.Container{{
			Resources: corev1.ResourceRequirements{Limits: corev1.ResourceList{
				"aliyun.com/gpu-mem": resource.MustParse("8")}}}}}}}}}
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "team-b"}}
	for name, test := range map[string]struct {
		manifests plan.Manifests
		binding   []runtime.Object
		forbidden []string
		tried     bool
		read      bool
		note      string
	}{
		"read":      {asks, []runtime.Object{binding}, nil, false, true, ""},
		"not there": {asks, nil, nil, false, false, "There is no MutatingAdmissionPolicyBinding gpushare-legacy-convert"},
		"no right": {asks, []runtime.Object{binding}, []string{"get mutatingadmissionpolicybindings"}, false, false,
			"You may not get mutating"},
		"not there, and not needed": {asks, nil, nil, true, false, ""},
		"read for the reason":       {asks, []runtime.Object{binding}, nil, true, true, ""},
		"not asked for":             {wanted(), []runtime.Object{binding}, nil, true, false, ""},
	} {
		t.Run(name, func(t *testing.T) {
			client := fake.NewClientset(append(append(objects(), namespace), test.binding...)...)
			forbid(client, test.forbidden...)
			if test.tried {
				admits(t, client, func(*corev1.Pod) error { return nil })
			} else {
				reviewed(client, false)
			}
			in, err := cluster.Reader{Client: client}.PlanInput(t.Context(), test.manifests)
			if err != nil || (in.Converts != nil) != test.read {
				t.Errorf("got %v, %v", in.Converts, err)
			}
			if !test.tried {
				const untried = "What the cluster's policies make of pods is not known, and pods are planned as with the " +
					"driver's defaults: you may not create pods in namespace team-b."
				expect.Equal(t, untried, in.Notes[0], "notes %q", in.Notes)
				in.Notes = in.Notes[1:]
			}
			if got := strings.Join(in.Notes, "\n"); !strings.HasPrefix(got, test.note) || test.note == "" && got != "" {
				t.Errorf("notes %q, want %q", got, test.note)
			}
		})
	}
}

func TestAPlanThatCannotRead(t *testing.T) {
	for verb, resource := range map[string]string{"list": "pods", "get": "resourceclaimtemplates"} {
		client := fake.NewClientset(objects()...)
		answer(client, verb, resource, nil, errors.New("the network is down"))
		reviewed(client, false)
		_, err := cluster.Reader{Client: client, Namespace: "team-a"}.PlanInput(t.Context(), wanted())
		expect.Error(t, err, "the network is down")
	}
}

// A cluster of before the driver is read as well, also one that knows no claims.
func TestReadsACKsCluster(t *testing.T) {
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "gpu", Labels: map[string]string{
		"ack.node.gpu.schedule": "share", "aliyun.accelerator/nvidia_count": "1",
		"aliyun.accelerator/nvidia_mem": "16130MiB"}}}
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "prod", Name: "train"},
		Spec: corev1.PodSpec{NodeName: "gpu",
			Containers: []corev1.Container{{Name: "c", Resources: corev1.ResourceRequirements{Limits: corev1.ResourceList{
				"aliyun.com/gpu-mem": resource.MustParse("8")}}}}}}
	for name, absent := range map[string]bool{"with claims": false, "without": true} {
		t.Run(name, func(t *testing.T) {
			client := fake.NewClientset(node, pod)
			if absent {
				answer(client, "list", "resourceslices", nil,
					apierrors.NewNotFound(schema.GroupResource{Resource: "resourceslices"}, ""))
			}
			in, err := cluster.Reader{Client: client}.PlanFromACK(t.Context(), plan.Manifests{})
			expect.NoError(t, err)
			made, err := plan.Of(t.Context(), in)
			if err != nil || made.Fits != 1 || made.Pods[0].Node != "gpu" {
				t.Errorf("got %+v, %v", made, err)
			}
			expect.Equal(t, absent, strings.Contains(strings.Join(made.Notes, "\n"), "does not serve ResourceSlices"),
				"noted in %q", made.Notes)
		})
	}
	client := fake.NewClientset(node, pod)
	forbid(client, "list pods")
	_, err := (cluster.Reader{Client: client}).PlanFromACK(t.Context(), plan.Manifests{})
	expect.Error(t, err, "ask for a ClusterRole with list on nodes and pods")
}
