// SPDX-License-Identifier: Apache-2.0

// Package admission knows whether pods that ask for ACK's extended resources and hold no
// claim can be scheduled by what nodes show of these resources. Such a pod would run
// without a card: a kubelet admits it, since no device plugin serves the resource.
package admission

import (
	"fmt"
	"slices"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/gpushare/dra-driver-gpushare/pkg/informer"
	"github.com/gpushare/dra-driver-gpushare/pkg/legacy"
)

// asks is the index of the pods that ask for one of the resources, and its one value.
const asks = "asks"

// Policy is the ValidatingAdmissionPolicy that refuses them, and those that were there
// before it.
type Policy struct {
	policy                   string
	policies, bindings, pods cache.SharedIndexInformer
}

// None stands for no policy at all: nothing holds, and nothing ever changes.
type None struct{}

// Enforced is false.
func (None) Enforced() bool { return false }

// Waiting is empty.
func (None) Pending() []string { return nil }

// OnChange never calls the function.
func (None) OnChange(func()) error { return nil }

// New makes a Guard of the policy with the name. The informers hold policies and
// bindings, at least those of this name, and the pods that are on no node, of which
// it reads the requests of the containers.
func New(policy string, policies, bindings, pods cache.SharedIndexInformer) *Policy {
	return &Policy{policy: policy, policies: policies, bindings: bindings, pods: pods}
}

// Asking are the containers of a pod that ask for one of the resources, with no more
// than their requests: what a cache of pods has to keep as the pods' containers.
func Asking(pod *corev1.Pod) []corev1.Container {
	var asking []corev1.Container
	for _, c := range slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers) {
		if slices.ContainsFunc(legacy.Names(), func(name corev1.ResourceName) bool {
			amount := c.Resources.Requests[name]
			return !amount.IsZero()
		}) {
			asking = append(asking,
				corev1.Container{Name: c.Name, Resources: corev1.ResourceRequirements{Requests: c.Resources.Requests}})
		}
	}
	return asking
}

// Enforced says whether the policy is installed and enforced on every pod: it fails
// closed, and a binding makes it deny, neither of them with selectors that leave pods
// out.
func (g *Policy) Enforced() bool {
	object, exists, err := g.policies.GetStore().GetByKey(g.policy)
	if err != nil || !exists {
		return false
	}
	policy, ok := object.(*admissionv1.ValidatingAdmissionPolicy)
	if !ok || policy.Spec.FailurePolicy != nil && *policy.Spec.FailurePolicy != admissionv1.Fail ||
		leavesOut(policy.Spec.MatchConstraints) {
		return false
	}
	return slices.ContainsFunc(g.bindings.GetStore().List(), func(object any) bool {
		binding, ok := object.(*admissionv1.ValidatingAdmissionPolicyBinding)
		return ok && binding.Spec.PolicyName == g.policy &&
			slices.Contains(binding.Spec.ValidationActions, admissionv1.Deny) &&
			!leavesOut(binding.Spec.MatchResources) &&
			(binding.Spec.MatchResources == nil || len(binding.Spec.MatchResources.ResourceRules) == 0)
	})
}

// leavesOut says whether there may be pods that are not matched, of those that the
// resource rules are for.
func leavesOut(match *admissionv1.MatchResources) bool {
	selects := func(selector *metav1.LabelSelector) bool {
		return selector != nil && len(selector.MatchLabels)+len(selector.MatchExpressions) > 0
	}
	return match != nil && (selects(match.NamespaceSelector) || selects(match.ObjectSelector) || len(
		match.ExcludeResourceRules) > 0)
}

// Waiting lists, in order, the pods that would be scheduled by the amounts: they are
// older than the policy.
func (g *Policy) Pending() []string {
	// It fails only for an index that there is not. Each node asks, and most pods that
	// are on no node ask for none of the resources.
	pending, _ := g.pods.GetIndexer().IndexKeys(asks, asks)
	slices.Sort(pending)
	return pending
}

// OnChange has the function called when the answers may have changed. It is to be
// called before the informers run.
func (g *Policy) OnChange(changed func()) error {
	if err := g.pods.AddIndexers(cache.Indexers{asks: func(object any) ([]string, error) {
		if pod, ok := object.(*corev1.Pod); ok && len(Asking(pod)) > 0 {
			return []string{asks}, nil
		}
		return nil, nil
	}}); err != nil {
		return fmt.Errorf("index the pods that are on no node: %w", err)
	}
	for _, informer := range []cache.SharedIndexInformer{g.policies, g.bindings} {
		if _, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
			AddFunc: func(any) { changed() }, UpdateFunc: func(any, any) { changed() }, DeleteFunc: func(any) { changed() },
		}); err != nil {
			return fmt.Errorf("watch the ValidatingAdmissionPolicy %s and its bindings: %w", g.policy, err)
		}
	}
	// What a pod asks for does not change.
	asking := func(object any) {
		if pod, ok := informer.Object(object).(*corev1.Pod); ok && len(Asking(pod)) > 0 {
			changed()
		}
	}
	if _, err := g.pods.AddEventHandler(cache.ResourceEventHandlerFuncs{AddFunc: asking, DeleteFunc: asking}); err != nil {
		return fmt.Errorf("watch the pods that are on no node: %w", err)
	}
	return nil
}
