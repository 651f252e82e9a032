// SPDX-License-Identifier: Apache-2.0

package admission

import (
	"context"
	"slices"

	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
)

// Whoever may change nodes may have pods evicted from them.
const (
	autoscaler = "system:serviceaccount:kube-system:cluster-autoscaler"
	preemption = "system:serviceaccount:kube-system:gpu-compat-controller"
)

// rights are what some accounts may do: Kubernetes' own with claims and pods, and those that have pods
// evicted with nodes.
var rights = map[string][]string{
	"system:kube-scheduler": {"create pods/binding", "update resourceclaims/status", "update resourceclaims/binding"},
	"system:serviceaccount:team:scheduler": {"create pods/binding", "update resourceclaims/status",
		"update resourceclaims/binding"},
	"system:serviceaccount:kube-system:resource-claim-controller": {"update resourceclaims/status",
		"update resourceclaims/binding"},
	autoscaler: {"update nodes/"},
	preemption: {"patch nodes/"},
}

// authorize knows administrators, and whoever has rights. Whoever is in the group admins:NAMESPACE may do
// anything there.
func authorize(_ context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
	groups := a.GetUser().GetGroups()
	if slices.Contains(groups, user.SystemPrivilegedGroup) ||
		a.GetNamespace() != "" && slices.Contains(groups, "admins:"+a.GetNamespace()) ||
		slices.Contains(rights[a.GetUser().GetName()], a.GetVerb()+" "+a.GetResource()+"/"+a.GetSubresource()) {
		return authorizer.DecisionAllow, "", nil
	}
	return authorizer.DecisionNoOpinion, "", nil
}
