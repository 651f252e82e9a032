// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/gpushare/dra-driver-gpushare/tests/harness"
)

func published(t *testing.T, node string) *resourceapi.ResourceSlice {
	t.Helper()
	return cluster.Slice(t, node, "is there", func(*resourceapi.ResourceSlice) error { return nil })
}

// pluginToken is a token as the pod of a node's plugin holds it.
func pluginToken(t *testing.T, node string) string {
	t.Helper()
	return tokenOn(t, node, "gpu-kubelet-plugin")
}

// tokenOn is a token as the pod of a component of the driver's holds it on a node. The
// component has an account of its name.
func tokenOn(t *testing.T, node, component string) string {
	t.Helper()
	pods, err := cluster.Client.CoreV1().Pods(harness.PluginNamespace).List(t.Context(), metav1.ListOptions{
		LabelSelector: "app.kubernetes.io/component=" + component, FieldSelector: "spec.nodeName=" + node,
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(pods.Items) == 0 {
		t.Fatalf("no %s runs on node %s", component, node)
	}
	pod := pods.Items[0]
	return token(t, component, &authenticationv1.BoundObjectReference{APIVersion: "v1", Kind: "Pod", Name: pod.Name,
		UID: pod.UID})
}

func token(t *testing.T, account string, bound *authenticationv1.BoundObjectReference) string {
	t.Helper()
	request, err := cluster.Client.CoreV1().ServiceAccounts(harness.PluginNamespace).CreateToken(t.Context(), account,
		&authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{BoundObjectRef: bound}},
		metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return request.Status.Token
}

func withToken(t *testing.T, token string) kubernetes.Interface {
	t.Helper()
	config := rest.AnonymousClientConfig(cluster.Config)
	config.BearerToken = token
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	return client
}
