// SPDX-License-Identifier: Apache-2.0

package harness

import (
	"fmt"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
)

// Deployment is one whose pods are like a pod, with the Deployment's name as their label app.
func Deployment(name string, replicas int, pod *corev1.Pod) *appsv1.Deployment {
	pod = pod.DeepCopy()
	pod.Spec.RestartPolicy = corev1.RestartPolicyAlways
	metav1.SetMetaDataLabel(&pod.ObjectMeta, "app", name)
	return &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: appsv1.DeploymentSpec{
			Replicas: ptr.To(int32(replicas)),
			Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": name}},
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: pod.Labels}, Spec: pod.Spec},
		},
	}
}

// Deploy makes Deployments, in order.
func (n *Namespace) Deploy(t *testing.T, deployments ...*appsv1.Deployment) {
	t.Helper()
	for _, deployment := range deployments {
		Make(t, n.Client.AppsV1().Deployments(n.Name), deployment)
	}
}

// Scale has a Deployment keep so many pods.
func (n *Namespace) Scale(t *testing.T, deployment string, replicas int) {
	t.Helper()
	Patch(t, n.Client.AppsV1().Deployments(n.Name), deployment, types.MergePatchType,
		fmt.Sprintf(`{"spec":{"replicas":%d}}`, replicas))
}
