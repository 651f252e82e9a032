// SPDX-License-Identifier: Apache-2.0

package cluster_test

import (
	"slices"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/utils/ptr"

	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/inspect/cluster"
)

// A snapshot has the plugin's settings, and tells what may not be read from what is not served.
func TestSnapshot(t *testing.T) {
	plugin := &appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{Namespace: "gpu", Name: "gpu-kubelet-plugin",
		Labels: map[string]string{"app.kubernetes.io/name": "dra-driver-gpushare",
			"app.kubernetes.io/component": "gpu-kubelet-plugin"}}}
	plugin.Spec.Template.Spec.ServiceAccountName = "gpu-kubelet-plugin"
	plugin.Spec.Template.Spec.Containers = []corev1.Container{{SecurityContext: &corev1.SecurityContext{
		Privileged: ptr.To(true)}, EnvFrom: []corev1.EnvFromSource{{
		ConfigMapRef: &corev1.ConfigMapEnvSource{LocalObjectReference: corev1.LocalObjectReference{Name: "settings"}}}}}}
	settings := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "gpu", Name: "settings"}}
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "gpu"}}
	// Anybody may give labels, and what is read is put into bundles.
	forged := plugin.DeepCopy()
	forged.Namespace, forged.Name = "team", "forged"
	theirs := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "settings"}}
	forged.Spec.Template.Spec.ServiceAccountName = "default"
	said := &corev1.Event{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "e"}, Reason: "GPULeftOut",
		InvolvedObject: corev1.ObjectReference{Kind: "Node", Name: "n1"}}
	silent := &resourceapi.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: "n2"}, Spec: resourceapi.ResourceSliceSpec{
		Driver: v1alpha1.DriverName, NodeName: ptr.To("n2")}}

	client := fake.NewClientset(append(objects(), plugin, settings, namespace, forged, theirs, said, silent)...)
	s, err := cluster.Reader{Client: client}.Snapshot(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if len(s.ConfigMaps) != 1 || s.ConfigMaps[0].Namespace != "gpu" || len(s.Namespaces) != 1 ||
		len(s.Unread)+len(s.Unserved) > 0 {
		t.Errorf("ConfigMaps %v, namespaces %v, unread %v, unserved %v", s.ConfigMaps, s.Namespaces, s.Unread, s.Unserved)
	}
	if len(s.NodeEvents) != 1 {
		t.Errorf("Events %v, though each node publishes", s.NodeEvents)
	}

	forbid(client, "list configmaps gpu", "list nodes", "list events default")
	client.PrependReactor("list", "deviceclasses", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil, apierrors.NewNotFound(schema.GroupResource{Resource: "deviceclasses"}, "")
	})
	s, err = cluster.Reader{Client: client}.Snapshot(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(s.Unread, []string{"configmaps", "events", "nodes"}) ||
		!slices.Equal(s.Unserved, []string{"deviceclasses.resource.k8s.io"}) {
		t.Errorf("unread %v, unserved %v", s.Unread, s.Unserved)
	}
}
