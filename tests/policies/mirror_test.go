// SPDX-License-Identifier: Apache-2.0

package admission

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/pkg/legacy"
)

// A static pod runs whether the API server takes its mirror or not, and NodeRestriction takes none with a claim: so the
// mirror is stored as the kubelet writes it, and the pod is seen. By anybody else the annotation means nothing.
func TestMirrorsOfStaticPods(t *testing.T) {
	s := newServer(t)
	for name, asks := range map[string][]string{
		"memory": {"mem 3"}, "memory and compute": {"mem 3 core 30"}, "GPUs": {"gpu 2"}, "what no node serves": {"mem 2000"},
		"several containers": {"mem 3", "mem 1"}, "nothing": {""},
	} {
		t.Run(name, func(t *testing.T) {
			var containers []corev1.Container
			for i, asked := range asks {
				containers = append(containers, limited(string(rune('a'+i)), asked))
			}
			mirror := changed(pod("p-n1", nil, containers...), func(p *corev1.Pod) {
				p.Spec.NodeName = "n1"
				p.Annotations = map[string]string{corev1.MirrorPodAnnotationKey: "hash"}
			})
			got, err := s.createBy("system:node:n1", mirror)
			expect.NoError(t, err)
			if diff := cmp.Diff(mirror.Spec, got.Spec) + cmp.Diff(mirror.ObjectMeta, got.ObjectMeta); diff != "" {
				t.Errorf("the mirror is changed (-kubelet's +stored):\n%s", diff)
			}
			static := changed(mirror.DeepCopy(), func(p *corev1.Pod) { p.Annotations = nil })
			for who, p := range map[string]*corev1.Pod{"somebody": mirror, "system:node:n1": static} {
				got, err := s.createBy(who, p)
				converted := err == nil && len(got.Spec.ResourceClaims) > 0 && got.Spec.ResourceClaims[0].Name == legacy.ClaimName
				if name != "nothing" && err == nil && !converted {
					t.Errorf("%s creates a pod that asks and has no claim", who)
				}
			}
		})
	}
}
