// Package guard knows whether the cluster refuses pods that ask for ACK's extended
// resources and hold no claim.
package guard

import (
	"fmt"
	"slices"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/client-go/tools/cache"
)

// Guard is the ValidatingAdmissionPolicy that refuses them.
type Guard struct {
	policies, bindings cache.SharedIndexInformer
	policy             string
}

// New makes a Guard of the policy with the name. The informers hold policies and
// bindings, at least those of this name.
func New(policy string, policies, bindings cache.SharedIndexInformer) *Guard {
	return &Guard{policies: policies, bindings: bindings, policy: policy}
}

// Holds says whether the policy is installed and enforced: it fails closed, and a
// binding makes it deny.
func (g *Guard) Holds() bool {
	object, exists, err := g.policies.GetStore().GetByKey(g.policy)
	if err != nil || !exists {
		return false
	}
	policy, ok := object.(*admissionv1.ValidatingAdmissionPolicy)
	if !ok || policy.Spec.FailurePolicy != nil && *policy.Spec.FailurePolicy != admissionv1.Fail {
		return false
	}
	return slices.ContainsFunc(g.bindings.GetStore().List(), func(object any) bool {
		binding, ok := object.(*admissionv1.ValidatingAdmissionPolicyBinding)
		return ok && binding.Spec.PolicyName == g.policy && slices.Contains(binding.Spec.ValidationActions, admissionv1.Deny)
	})
}

// OnChange has the function called when a policy or a binding comes, changes or
// goes. It is to be called before the informers run.
func (g *Guard) OnChange(changed func()) error {
	handler := cache.ResourceEventHandlerFuncs{
		AddFunc: func(any) { changed() }, UpdateFunc: func(any, any) { changed() }, DeleteFunc: func(any) { changed() },
	}
	for _, informer := range []cache.SharedIndexInformer{g.policies, g.bindings} {
		if _, err := informer.AddEventHandler(handler); err != nil {
			return fmt.Errorf("watch the ValidatingAdmissionPolicy %s and its bindings: %w", g.policy, err)
		}
	}
	return nil
}
