// SPDX-License-Identifier: Apache-2.0

package nodestatus

import (
	"testing"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/utils/ptr"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/pkg/controller/cache"
)

const name = "refuse"

func policyOf(change func(*admissionv1.ValidatingAdmissionPolicy)) *admissionv1.ValidatingAdmissionPolicy {
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
		"policy only":        {policyOf(nil), nil, false},
		"binding only":       {nil, binding(name, admissionv1.Deny), false},
		"both":               {policyOf(nil), binding(name, admissionv1.Deny), true},
		"both, fails closed": {policyOf(failing(admissionv1.Fail)), binding(name, admissionv1.Warn, admissionv1.Deny), true},
		"fails open":         {policyOf(failing(admissionv1.Ignore)), binding(name, admissionv1.Deny), false},
		"warns":              {policyOf(nil), binding(name, admissionv1.Warn, admissionv1.Audit), false},
		"every pod": {
			policyOf(matching(&admissionv1.MatchResources{NamespaceSelector: &metav1.LabelSelector{},
				ObjectSelector: &metav1.LabelSelector{}, ResourceRules: rules})),
			bound(&admissionv1.MatchResources{NamespaceSelector: &metav1.LabelSelector{},
				ObjectSelector: &metav1.LabelSelector{}}), true,
		},
		"not these namespaces": {policyOf(nil), bound(&admissionv1.MatchResources{NamespaceSelector: one}), false},
		"not these pods":       {policyOf(nil), bound(&admissionv1.MatchResources{ObjectSelector: one}), false},
		"not some": {policyOf(nil), bound(&admissionv1.MatchResources{ExcludeResourceRules: rules}),
			false},
		"only some": {policyOf(nil), bound(&admissionv1.MatchResources{ResourceRules: rules}), false},
		"a policy not for these namespaces": {policyOf(matching(&admissionv1.MatchResources{NamespaceSelector: one})),
			binding(name, admissionv1.Deny), false},
		"a policy not for some": {policyOf(matching(&admissionv1.MatchResources{ExcludeResourceRules: rules})),
			binding(name, admissionv1.Deny), false},
		"of another policy": {policyOf(nil), binding("other", admissionv1.Deny), false},
		"a policy of another": {policyOf(func(p *admissionv1.ValidatingAdmissionPolicy) { p.Name = "other" }),
			binding(name, admissionv1.Deny), false},
	} {
		t.Run(what, func(t *testing.T) {
			p := newInstalled(cache.New(cache.Options{Client: fake.NewClientset()}).Reader(), name)
			if test.policy != nil {
				expect.NoError(t, p.policies.Put(test.policy))
			}
			if test.binding != nil {
				expect.NoError(t, p.bindings.Put(test.binding))
			}
			expect.Equal(t, test.want, p.enforced(), "enforced")
		})
	}
}

func TestPodsThatWaitAreThoseThatAsk(t *testing.T) {
	p := newInstalled(cache.New(cache.Options{Client: fake.NewClientset()}).Reader(), name)
	pod := func(name string, containers, init []corev1.Container) {
		t.Helper()
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name},
			Spec: corev1.PodSpec{Containers: containers, InitContainers: init}}
		expect.NoError(t, p.pods.Put(pod))
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
	expect.Equal(t, want, p.pending(), "waiting")
}
