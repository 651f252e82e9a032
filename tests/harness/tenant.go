// SPDX-License-Identifier: Apache-2.0

package harness

import (
	"context"
	"fmt"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// Tenant returns a client with the rights of somebody who was given the namespace and
// nothing else: the token of a ServiceAccount that is bound to Kubernetes' own
// ClusterRole admin there.
func (n *Namespace) Tenant(t *testing.T) kubernetes.Interface {
	t.Helper()
	const name = "tenant"
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: name}}
	if _, err := n.Client.CoreV1().ServiceAccounts(n.Name).Create(t.Context(), account,
		metav1.CreateOptions{}); err != nil {
		t.Fatalf("make the tenant of namespace %s: %v", n.Name, err)
	}
	binding := &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "admin"},
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: n.Name, Name: name}},
	}
	if _, err := n.Client.RbacV1().RoleBindings(n.Name).Create(t.Context(), binding, metav1.CreateOptions{}); err != nil {
		t.Fatalf("give the tenant of namespace %s its rights: %v", n.Name, err)
	}
	token, err := n.Client.CoreV1().ServiceAccounts(n.Name).CreateToken(t.Context(), name,
		&authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	if err != nil {
		t.Fatalf("ask for a token of the tenant of namespace %s: %v", n.Name, err)
	}
	config := rest.AnonymousClientConfig(n.Config)
	config.BearerToken = token.Status.Token
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatalf("make a client of the tenant of namespace %s: %v", n.Name, err)
	}
	for _, resource := range []authorizationv1.ResourceAttributes{
		{Namespace: n.Name, Verb: "create", Resource: "pods"},
		{Namespace: n.Name, Verb: "create", Group: resourceapi.GroupName, Resource: "resourceclaimtemplates"},
	} {
		review := &authorizationv1.SelfSubjectAccessReview{
			Spec: authorizationv1.SelfSubjectAccessReviewSpec{ResourceAttributes: &resource},
		}
		Eventually(t, "the tenant to have its rights", func(ctx context.Context) error {
			answer, err := client.AuthorizationV1().SelfSubjectAccessReviews().Create(ctx, review, metav1.CreateOptions{})
			if err == nil && !answer.Status.Allowed {
				err = fmt.Errorf("it may not create %s: %s", resource.Resource, answer.Status.Reason)
			}
			return err
		})
	}
	return client
}
