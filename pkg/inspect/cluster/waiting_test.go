// SPDX-License-Identifier: Apache-2.0

package cluster_test

import (
	"errors"
	"fmt"
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
	clienttesting "k8s.io/client-go/testing"

	"github.com/gpushare/dra-driver-gpushare/pkg/inspect/cluster"
	"github.com/gpushare/dra-driver-gpushare/pkg/inspect/doctor"
)

// What waits and is older than the policies is named: they themselves judge it, in a dry run. Nothing is created.
func TestWhatWaitsAndWouldBeRefusedIsNamed(t *testing.T) {
	bound := &admissionv1.ValidatingAdmissionPolicyBinding{ObjectMeta: metav1.ObjectMeta{Name: doctor.SearchCost[0]},
		Spec: admissionv1.ValidatingAdmissionPolicyBindingSpec{PolicyName: doctor.SearchCost[0]}}
	other := bound.DeepCopy()
	other.Name, other.Spec.PolicyName = "another", "another"
	dear, cheap, has := claim("a", "dear"), claim("a", "cheap"), claim("a", "has")
	dear.Labels = map[string]string{"dear": "true"}
	has.Labels, has.Status.Allocation = dear.Labels, &resourceapi.AllocationResult{}
	pod := func(name string, of corev1.ResourceName) *corev1.Pod {
		return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "b", Name: name, Labels: dear.Labels},
			Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Resources: corev1.ResourceRequirements{
				Requests: corev1.ResourceList{of: resource.MustParse("1")}}}}}}
	}
	runs := pod("runs", "nvidia.com/gpu")
	runs.Spec.NodeName = "n1"
	said := "ValidatingAdmissionPolicy '" + doctor.SearchCost[0] + "' with binding 'x' denied request: too many requests."
	for name, test := range map[string]struct {
		binding *admissionv1.ValidatingAdmissionPolicyBinding
		// refused is how the API server answers what has the label dear.
		refused error
		want    []string
		untried string
		fails   bool
	}{
		"would be refused": {bound, errors.New(said), []string{"resourceclaim/dear -n a: too many requests",
			"pod/waits -n b: too many requests"}, "", false},
		"is not bound": {other, errors.New(said), nil, "", false},
		"another policy refuses": {bound, errors.New("ValidatingAdmissionPolicy 'another' denied request: no"), nil,
			"resourceclaim/dear -n a: ", false},
		"a quota refuses, after all policies": {bound, errors.New("exceeded quota: gpus"), nil, "", false},
		"the API server does not answer":      {bound, nil, nil, "", true},
	} {
		t.Run(name, func(t *testing.T) {
			client := fake.NewClientset(test.binding, dear, cheap, has, pod("waits", "nvidia.com/gpu"), pod("plain", "cpu"),
				runs)
			var tried []string
			client.PrependReactor("create", "*", func(a clienttesting.Action) (bool, runtime.Object, error) {
				create, is := a.(clienttesting.CreateActionImpl)
				if !is || !slices.Equal(create.CreateOptions.DryRun, []string{metav1.DryRunAll}) {
					t.Errorf("it creates %v", a)
					return true, nil, nil
				}
				object, _ := create.Object.(metav1.Object)
				tried = append(tried, a.GetResource().Resource)
				switch {
				case object.GetLabels()["dear"] == "":
					return true, create.Object, nil
				case test.fails:
					return true, nil, errors.New("the network is down")
				}
				return true, nil, apierrors.NewForbidden(schema.GroupResource{Resource: "things"}, "doctor-1", test.refused)
			})
			s, err := cluster.Reader{Client: client}.Snapshot(t.Context())
			if (err != nil) != test.fails {
				t.Fatal(err)
			}
			if test.fails {
				return
			}
			var got []string
			for _, r := range s.Dear {
				got = append(got, fmt.Sprintf("%s: %s", r.Object, r.Why))
			}
			slices.Sort(tried)
			if want := "pods resourceclaims resourceclaims"; test.binding == bound && strings.Join(tried, " ") != want {
				t.Errorf("it tried %v, want %s", tried, want)
			}
			if !slices.Equal(got, test.want) || !strings.HasPrefix(s.Untried, test.untried) ||
				(s.Untried == "") != (test.untried == "") {
				t.Errorf("named are %q, want %q; untried: %q", got, test.want, s.Untried)
			}
		})
	}
}
