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

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
)

// Tenant returns a client with the rights of somebody who was given the namespace and
// nothing else: the token of a ServiceAccount that is bound to Kubernetes' own
// ClusterRole admin there.
func (n *Namespace) Tenant(t *testing.T) kubernetes.Interface {
	t.Helper()
	const name = "tenant"
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: name}}
	Make(t, n.Client.CoreV1().ServiceAccounts(n.Name), account)
	binding := &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "admin"},
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: n.Name, Name: name}},
	}
	Make(t, n.Client.RbacV1().RoleBindings(n.Name), binding)
	client := n.ClientOf(t, n.Name, name, nil)
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

// ConfigOf returns a configuration that authenticates by a token of a ServiceAccount: the token of a pod or, if pod is
// nil, one that is bound to no pod.
func (c *Cluster) ConfigOf(t *testing.T, namespace, account string, pod *corev1.Pod) *rest.Config {
	t.Helper()
	var request authenticationv1.TokenRequest
	if pod != nil {
		request.Spec.BoundObjectRef = &authenticationv1.BoundObjectReference{APIVersion: "v1", Kind: "Pod", Name: pod.Name,
			UID: pod.UID}
	}
	token, err := c.Client.CoreV1().ServiceAccounts(namespace).CreateToken(t.Context(), account, &request,
		metav1.CreateOptions{})
	expect.NoErrorf(t, err, "ask for a token of ServiceAccount %s/%s", namespace, account)
	config := rest.AnonymousClientConfig(c.Config)
	config.BearerToken = token.Status.Token
	return config
}

// ClientOf returns a client with the configuration that ConfigOf returns.
func (c *Cluster) ClientOf(t *testing.T, namespace, account string, pod *corev1.Pod) kubernetes.Interface {
	t.Helper()
	client, err := kubernetes.NewForConfig(c.ConfigOf(t, namespace, account, pod))
	expect.NoErrorf(t, err, "make a client with a token of ServiceAccount %s/%s", namespace, account)
	return client
}
