// SPDX-License-Identifier: Apache-2.0

package nodestatus

import (
	"slices"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpushare/dra-driver-gpushare/pkg/controller/cache"
)

// policy knows whether pods that ask for ACK's extended resources and hold no claim can be
// scheduled by what nodes show of these resources. Such a pod would run without a GPU: a kubelet
// admits it, since no device plugin serves the resource.
type policy interface {
	// enforced is whether new ones are refused, pending the keys of those there are, in order.
	enforced() bool
	pending() []string
}

// none stands for no policy at all.
type none struct{}

func (none) enforced() bool    { return false }
func (none) pending() []string { return nil }

// installed is a ValidatingAdmissionPolicy of the cluster.
type installed struct {
	name     string
	policies *cache.Objects[*admissionv1.ValidatingAdmissionPolicy]
	bindings *cache.Objects[*admissionv1.ValidatingAdmissionPolicyBinding]
	pods     cache.Unscheduled
}

func newInstalled(c *cache.Reader, name string) *installed {
	return &installed{name: name, policies: c.AdmissionPolicy(name), bindings: c.AdmissionBinding(name),
		pods: c.UnscheduledPods()}
}

// enforced reports whether the policy is installed and enforced on every pod: it fails
// closed, and a binding makes it deny, neither of them with selectors that leave pods
// out.
func (p *installed) enforced() bool {
	policy, exists := p.policies.Get(p.name)
	if !exists || policy.Spec.FailurePolicy != nil && *policy.Spec.FailurePolicy != admissionv1.Fail ||
		leavesOut(policy.Spec.MatchConstraints) {
		return false
	}
	return slices.ContainsFunc(p.bindings.List(), func(binding *admissionv1.ValidatingAdmissionPolicyBinding) bool {
		return binding.Spec.PolicyName == p.name &&
			slices.Contains(binding.Spec.ValidationActions, admissionv1.Deny) &&
			!leavesOut(binding.Spec.MatchResources) &&
			(binding.Spec.MatchResources == nil || len(binding.Spec.MatchResources.ResourceRules) == 0)
	})
}

// leavesOut reports whether there may be pods that are not matched, of those that the
// resource rules are for.
func leavesOut(match *admissionv1.MatchResources) bool {
	selects := func(selector *metav1.LabelSelector) bool {
		return selector != nil && len(selector.MatchLabels)+len(selector.MatchExpressions) > 0
	}
	return match != nil && (selects(match.NamespaceSelector) || selects(match.ObjectSelector) || len(
		match.ExcludeResourceRules) > 0)
}

// pending lists, in order, the pods that would be scheduled by the amounts: they are
// older than the policy.
func (p *installed) pending() []string {
	keys := p.pods.AskForAmounts()
	slices.Sort(keys)
	return keys
}

// onChange has the function called when the answers may have changed. It is to be called before
// the cache runs.
func (p *installed) onChange(changed func()) {
	p.policies.On(cache.Noting(func(*admissionv1.ValidatingAdmissionPolicy) { changed() }, cache.SameVersion))
	p.bindings.On(cache.Noting(func(*admissionv1.ValidatingAdmissionPolicyBinding) { changed() }, cache.SameVersion))
	// What a pod asks for does not change.
	p.pods.On(cache.Noting(func(pod *corev1.Pod) {
		if cache.AsksForAmounts(pod) {
			changed()
		}
	}, func(_, _ *corev1.Pod) bool { return true }))
}
