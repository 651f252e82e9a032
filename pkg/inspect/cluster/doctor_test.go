// SPDX-License-Identifier: Apache-2.0

package cluster_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/utils/ptr"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
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

	role := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "system:kube-scheduler"}}

	client := fake.NewClientset(append(objects(), plugin, settings, namespace, forged, theirs, said, silent, role)...)
	s, err := cluster.Reader{Client: client}.Snapshot(t.Context())
	expect.NoError(t, err)
	if s.SchedulerRole == nil {
		t.Error("the scheduler's role was not read")
	}
	if len(s.ConfigMaps) != 1 || s.ConfigMaps[0].Namespace != "gpu" || len(s.Namespaces) != 1 ||
		len(s.Unread)+len(s.Unserved) > 0 {
		t.Errorf("ConfigMaps %v, namespaces %v, unread %v, unserved %v", s.ConfigMaps, s.Namespaces, s.Unread, s.Unserved)
	}
	expect.Equal(t, 1, len(s.NodeEvents), "Events, though each node publishes: %v", s.NodeEvents)

	forbid(client, "list configmaps gpu", "list nodes", "list events default")
	answer(client, "list", "deviceclasses", nil, apierrors.NewNotFound(schema.GroupResource{Resource: "deviceclasses"},
		""))
	s, err = cluster.Reader{Client: client}.Snapshot(t.Context())
	expect.NoError(t, err)
	if !slices.Equal(s.Unread, []string{"configmaps", "events", "nodes"}) ||
		!slices.Equal(s.Unserved, []string{"deviceclasses.resource.k8s.io"}) {
		t.Errorf("unread %v, unserved %v", s.Unread, s.Unserved)
	}
}

// A pod that has just gone is in its claim for a moment still; one that stays in it is found. Nobody waits else.
func TestPodsThatHaveJustGone(t *testing.T) {
	reserved := func(name string, pods ...string) *resourceapi.ResourceClaim {
		c := claim("team-a", name)
		c.UID = types.UID(name)
		c.Status.Allocation = &resourceapi.AllocationResult{Devices: resourceapi.DeviceAllocationResult{
			Results: []resourceapi.DeviceRequestAllocationResult{{Driver: v1alpha1.DriverName}}}}
		for _, pod := range pods {
			c.Status.ReservedFor = append(c.Status.ReservedFor,
				resourceapi.ResourceClaimConsumerReference{Resource: "pods", Name: pod, UID: types.UID(pod)})
		}
		return c
	}
	runs := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "team-a", Name: "runs", UID: "runs"}}
	const long = 5 * time.Second
	before := []resourceapi.ResourceClaim{*reserved("a", "runs", "gone"), *reserved("b", "gone"), *reserved("c", "runs")}
	for name, test := range map[string]struct {
		first, later []resourceapi.ResourceClaim
		err          error
		// found are the claims that a doctor finds.
		found           string
		patience, waits time.Duration
	}{
		"none has gone": {before[2:], nil, nil, "", time.Minute, 0},
		"released": {before, []resourceapi.ResourceClaim{*reserved("a", "runs"), *reserved("b", "new")}, nil, "",
			time.Minute, long},
		"all is gone":    {before, nil, nil, "", time.Minute, long},
		"still reserved": {before, before, nil, "a: gone, b: gone", time.Minute, long},
		"one of them": {before, []resourceapi.ResourceClaim{*reserved("a", "runs"), *reserved("b", "gone")}, nil,
			"b: gone", time.Minute, long},
		"cannot be read": {before, nil, errors.New("the network is down"), "", time.Minute, long},
		"given up":       {before, before, context.DeadlineExceeded, "", time.Second, time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				client := fake.NewClientset(runs)
				lists := 0
				client.PrependReactor("list", "resourceclaims", func(clienttesting.Action) (bool, runtime.Object, error) {
					if lists++; lists == 1 {
						return true, &resourceapi.ResourceClaimList{Items: test.first}, nil
					}
					return true, &resourceapi.ResourceClaimList{Items: test.later}, test.err
				})
				ctx, cancel := context.WithTimeout(t.Context(), test.patience)
				defer cancel()
				began := time.Now()
				s, err := cluster.Reader{Client: client}.Snapshot(ctx)
				if waited := time.Since(began); !errors.Is(err, test.err) || waited != test.waits {
					t.Fatalf("after %s it ends with %v", waited, err)
				}
				if err != nil {
					return
				}
				var found []string
				for c, pods := range s.ForGonePods() {
					found = append(found, c.Name+": "+pods[0].Name)
				}
				slices.Sort(found)
				expect.Equal(t, test.found, strings.Join(found, ", "), "found")
			})
		})
	}
}
