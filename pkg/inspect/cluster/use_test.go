// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

// Only the driver's own pod is asked for metrics, whoever else has its label.
func TestRunningPlugin(t *testing.T) {
	const want = "plugin"
	for name, change := range map[string]func(pod *corev1.Pod){
		"is asked":                     func(*corev1.Pod) {},
		"of a tenant":                  func(pod *corev1.Pod) { pod.Spec.ServiceAccountName = "default" },
		"of a tenant, by another name": func(pod *corev1.Pod) { pod.Spec.Containers[0].SecurityContext = nil },
		"is not privileged": func(pod *corev1.Pod) {
			pod.Spec.Containers[0].SecurityContext.Privileged = ptr.To(false)
		},
		"has not started": func(pod *corev1.Pod) { pod.Status.Phase = corev1.PodPending },
		"has failed":      func(pod *corev1.Pod) { pod.Status.Phase = corev1.PodFailed },
		"ends":            func(pod *corev1.Pod) { pod.DeletionTimestamp = ptr.To(metav1.Now()) },
	} {
		t.Run(name, func(t *testing.T) {
			own := corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: want}, Status: corev1.PodStatus{Phase: corev1.PodRunning},
				Spec: corev1.PodSpec{ServiceAccountName: pluginName, Containers: []corev1.Container{{
					SecurityContext: &corev1.SecurityContext{Privileged: ptr.To(true)}}}}}
			first := own.DeepCopy()
			change(first)
			if name != "is asked" {
				first.Name = "another"
				if found := runningPlugin([]corev1.Pod{*first}); found != nil {
					t.Errorf("a pod that %s is asked", name)
				}
			}
			if found := runningPlugin([]corev1.Pod{*first, own}); found == nil || found.Name != want {
				t.Errorf("found %v", found)
			}
		})
	}
}
