// SPDX-License-Identifier: Apache-2.0

package waiting_test

import (
	"testing"
	"testing/synctest"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpushare/dra-driver-gpushare/internal/apitest"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/ack"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
)

// The kubelet starts a static pod, whatever it asks for: who wrote it finds a program without a GPU, and why.
func TestStaticPodsAreTold(t *testing.T) {
	const told = "Warning " + v1alpha1.ReasonClaimTemplateNotMade + " A static pod runs without a GPU of this driver: " +
		"the kubelet starts it without the scheduler, and it cannot have claims. Have a DaemonSet or a Deployment start " +
		"the pod: docs/legacy.md"
	for name, test := range map[string]struct {
		change func(*corev1.Pod)
		want   []string
	}{
		"one that asks as on ACK": {func(*corev1.Pod) {}, []string{told}},
		"no static pod":           {func(p *corev1.Pod) { p.Annotations = nil }, nil},
		"one that asks for none":  {func(p *corev1.Pod) { p.Spec.Containers[0].Resources.Requests = nil }, nil},
		// A device plugin may give it what it asks for.
		"on a node without this driver": {func(p *corev1.Pod) { p.Spec.NodeName = "n2" }, nil},
	} {
		t.Run(name, func(t *testing.T) {
			run(t, func(s *site) {
				synctest.Wait()
				p := &corev1.Pod{
					ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "static-n1", UID: "u1",
						Annotations: map[string]string{corev1.MirrorPodAnnotationKey: "hash"}},
					Spec: corev1.PodSpec{NodeName: "n1", Containers: []corev1.Container{{Name: "main",
						Resources: corev1.ResourceRequirements{
							Requests: corev1.ResourceList{ack.ResourceMemory: resource.MustParse("4")}}}}},
					Status: corev1.PodStatus{Phase: corev1.PodPending},
				}
				test.change(p)
				apitest.Create(s, s.client, p)
				s.told("when it comes", test.want...)
				p.ResourceVersion, p.Labels = "2", map[string]string{"a": "b"}
				apitest.Update(s, s.client, p)
				s.told("when it changes")
			})
		})
	}
}
