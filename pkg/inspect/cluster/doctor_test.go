// SPDX-License-Identifier: Apache-2.0

package cluster_test

import (
	"slices"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/gpushare/dra-driver-gpushare/pkg/inspect/cluster"
)

// A snapshot has the plugin's settings, and tells what may not be read from what is not served.
func TestSnapshot(t *testing.T) {
	plugin := &appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{Namespace: "gpu", Name: "gpu-kubelet-plugin",
		Labels: map[string]string{"app.kubernetes.io/name": "dra-driver-gpushare",
			"app.kubernetes.io/component": "gpu-kubelet-plugin"}}}
	plugin.Spec.Template.Spec.Containers = []corev1.Container{{EnvFrom: []corev1.EnvFromSource{{
		ConfigMapRef: &corev1.ConfigMapEnvSource{LocalObjectReference: corev1.LocalObjectReference{Name: "settings"}}}}}}
	settings := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "gpu", Name: "settings"}}
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "gpu"}}

	client := fake.NewClientset(append(objects(), plugin, settings, namespace)...)
	s, err := cluster.Reader{Client: client}.Snapshot(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if len(s.ConfigMaps) != 1 || len(s.Namespaces) != 1 || len(s.Unread)+len(s.Unserved) > 0 {
		t.Errorf("ConfigMaps %v, namespaces %v, unread %v, unserved %v", s.ConfigMaps, s.Namespaces, s.Unread, s.Unserved)
	}

	forbid(client, "list configmaps gpu", "list nodes")
	client.PrependReactor("list", "deviceclasses", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil, apierrors.NewNotFound(schema.GroupResource{Resource: "deviceclasses"}, "")
	})
	s, err = cluster.Reader{Client: client}.Snapshot(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(s.Unread, []string{"configmaps", "nodes"}) ||
		!slices.Equal(s.Unserved, []string{"deviceclasses.resource.k8s.io"}) {
		t.Errorf("unread %v, unserved %v", s.Unread, s.Unserved)
	}
}
