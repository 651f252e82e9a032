// SPDX-License-Identifier: Apache-2.0

package admission

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/utils/ptr"
)

const name = "refuse"

func policy(change func(*admissionv1.ValidatingAdmissionPolicy)) *admissionv1.ValidatingAdmissionPolicy {
	p := &admissionv1.ValidatingAdmissionPolicy{ObjectMeta: metav1.ObjectMeta{Name: name}}
	if change != nil {
		change(p)
	}
	return p
}

func binding(policy string, actions ...admissionv1.ValidationAction) *admissionv1.ValidatingAdmissionPolicyBinding {
	return &admissionv1.ValidatingAdmissionPolicyBinding{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       admissionv1.ValidatingAdmissionPolicyBindingSpec{PolicyName: policy, ValidationActions: actions},
	}
}

func TestPolicyHoldsOnlyWhereItRefuses(t *testing.T) {
	failing := func(how admissionv1.FailurePolicyType) func(*admissionv1.ValidatingAdmissionPolicy) {
		return func(p *admissionv1.ValidatingAdmissionPolicy) { p.Spec.FailurePolicy = ptr.To(how) }
	}
	one := &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "team",
		Operator: metav1.LabelSelectorOpNotIn, Values: []string{"a"}}}}
	rules := []admissionv1.NamedRuleWithOperations{{ResourceNames: []string{"p"}}}
	bound := func(match *admissionv1.MatchResources) *admissionv1.ValidatingAdmissionPolicyBinding {
		b := binding(name, admissionv1.Deny)
		b.Spec.MatchResources = match
		return b
	}
	matching := func(match *admissionv1.MatchResources) func(*admissionv1.ValidatingAdmissionPolicy) {
		return func(p *admissionv1.ValidatingAdmissionPolicy) { p.Spec.MatchConstraints = match }
	}
	for what, test := range map[string]struct {
		policy  *admissionv1.ValidatingAdmissionPolicy
		binding *admissionv1.ValidatingAdmissionPolicyBinding
		want    bool
	}{
		"nothing":            {nil, nil, false},
		"policy only":        {policy(nil), nil, false},
		"binding only":       {nil, binding(name, admissionv1.Deny), false},
		"both":               {policy(nil), binding(name, admissionv1.Deny), true},
		"both, fails closed": {policy(failing(admissionv1.Fail)), binding(name, admissionv1.Warn, admissionv1.Deny), true},
		"fails open":         {policy(failing(admissionv1.Ignore)), binding(name, admissionv1.Deny), false},
		"warns":              {policy(nil), binding(name, admissionv1.Warn, admissionv1.Audit), false},
		"every pod": {
			policy(matching(&admissionv1.MatchResources{NamespaceSelector: &metav1.LabelSelector{},
				ObjectSelector: &metav1.LabelSelector{}, ResourceRules: rules})),
			bound(&admissionv1.MatchResources{NamespaceSelector: &metav1.LabelSelector{},
				ObjectSelector: &metav1.LabelSelector{}}), true,
		},
		"not these namespaces": {policy(nil), bound(&admissionv1.MatchResources{NamespaceSelector: one}), false},
		"not these pods":       {policy(nil), bound(&admissionv1.MatchResources{ObjectSelector: one}), false},
		"not some": {policy(nil), bound(&admissionv1.MatchResources{ExcludeResourceRules: rules}),
			false},
		"only some": {policy(nil), bound(&admissionv1.MatchResources{ResourceRules: rules}), false},
		"a policy not for these namespaces": {policy(matching(&admissionv1.MatchResources{NamespaceSelector: one})),
			binding(name, admissionv1.Deny), false},
		"a policy not for some": {policy(matching(&admissionv1.MatchResources{ExcludeResourceRules: rules})),
			binding(name, admissionv1.Deny), false},
		"of another policy": {policy(nil), binding("other", admissionv1.Deny), false},
		"a policy of another": {policy(func(p *admissionv1.ValidatingAdmissionPolicy) { p.Name = "other" }),
			binding(name, admissionv1.Deny), false},
	} {
		t.Run(what, func(t *testing.T) {
			factory := informers.NewSharedInformerFactory(fake.NewClientset(), 0).Admissionregistration().V1()
			policies, bindings := factory.ValidatingAdmissionPolicies().Informer(),
				factory.ValidatingAdmissionPolicyBindings().Informer()
			if test.policy != nil {
				if err := policies.GetStore().Add(test.policy); err != nil {
					t.Fatal(err)
				}
			}
			if test.binding != nil {
				if err := bindings.GetStore().Add(test.binding); err != nil {
					t.Fatal(err)
				}
			}
			if got := New(name, policies, bindings, nil).Enforced(); got != test.want {
				t.Errorf("enforced: %t, want %t", got, test.want)
			}
		})
	}
}

func TestPodsThatWaitAreThoseThatAsk(t *testing.T) {
	factory := informers.NewSharedInformerFactory(fake.NewClientset(), 0)
	pods, admission := factory.Core().V1().Pods().Informer(), factory.Admissionregistration().V1()
	g := New(name, admission.ValidatingAdmissionPolicies().Informer(),
		admission.ValidatingAdmissionPolicyBindings().Informer(), pods)
	if err := g.OnChange(func() {}); err != nil {
		t.Fatal(err)
	}
	pod := func(name string, containers, init []corev1.Container) {
		t.Helper()
		whole := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name},
			Spec: corev1.PodSpec{Containers: containers, InitContainers: init}}
		kept := &corev1.Pod{ObjectMeta: whole.ObjectMeta, Spec: corev1.PodSpec{Containers: Asking(whole)}}
		if err := pods.GetIndexer().Add(kept); err != nil {
			t.Fatal(err)
		}
	}
	asking := func(name corev1.ResourceName, amount string) []corev1.Container {
		return []corev1.Container{{},
			{Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{name: resource.MustParse(amount)}}}}
	}
	pod("topology", asking("aliyun.com/gpu", "2"), nil)
	pod("share", asking("aliyun.com/gpu-mem", "3"), nil)
	pod("init", nil, asking("aliyun.com/gpu-mem", "3"))
	pod("nothing", asking("aliyun.com/gpu-mem", "0"), nil)
	pod("native", asking("nvidia.com/gpu", "1"), asking("cpu", "1"))
	want := []string{"ns/init", "ns/share", "ns/topology"}
	if diff := cmp.Diff(want, g.Pending()); diff != "" {
		t.Errorf("waiting (-want +got):\n%s", diff)
	}
}
