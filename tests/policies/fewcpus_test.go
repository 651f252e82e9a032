// SPDX-License-Identifier: Apache-2.0

package admission

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
)

// With the option best-node, pods with GPUs tolerate the taint of nodes with few CPUs. Those without do not, nor does a
// list of tolerations change that a manifest has.
func TestPodsWithGPUsTolerateFewCPUs(t *testing.T) {
	s := withOptions(t)
	tolerated := corev1.Toleration{Key: v1alpha1.NodeTaintFewCPUs, Operator: corev1.TolerationOpExists,
		Effect: corev1.TaintEffectPreferNoSchedule}
	unreachable := corev1.Toleration{Key: corev1.TaintNodeUnreachable, Operator: corev1.TolerationOpExists}
	tolerating := func(p *corev1.Pod, tolerations ...corev1.Toleration) *corev1.Pod {
		p.Spec.Tolerations = tolerations
		return p
	}
	own := corev1.Toleration{Key: "nvidia.com/gpu", Operator: corev1.TolerationOpExists}
	for name, test := range map[string]struct {
		pod  *corev1.Pod
		want []corev1.Toleration
	}{
		"a share":     {podFor("mem 3"), []corev1.Toleration{tolerated}},
		"whole GPUs":  {podFor("gpu 2"), []corev1.Toleration{tolerated}},
		"NVIDIA's":    {podFor("nvidia.com/gpu 1"), []corev1.Toleration{tolerated}},
		"a claim":     {withNIC(podFor("")), []corev1.Toleration{tolerated}},
		"a sidecar's": {withInit(podFor(""), sidecar(limited("s", "mem 3"))), []corev1.Toleration{tolerated}},
		"a DeviceClass's": {podFor("deviceclass.resource.kubernetes.io/share.gpu.aliyun.com 1"),
			[]corev1.Toleration{tolerated}},
		"beside what the API server adds": {tolerating(podFor("mem 3"), unreachable),
			[]corev1.Toleration{unreachable, tolerated}},
		"with tolerations of its own": {tolerating(podFor("mem 3"), unreachable, own),
			[]corev1.Toleration{unreachable, own}},
		"that tolerates all": {tolerating(podFor("mem 3"),
			corev1.Toleration{Operator: corev1.TolerationOpExists}),
			[]corev1.Toleration{{Operator: corev1.TolerationOpExists}}},
		"without GPUs":   {podFor(""), nil},
		"with none":      {podFor("nvidia.com/gpu 0"), nil},
		"another device": {podFor("deviceclass.resource.kubernetes.io/nic.example.com 1"), nil},
		"that opted out": {withNIC(pod("p", map[string]string{v1alpha1.LabelLegacy: "false"}, limited("c", ""))), nil},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := s.create(test.pod)
			expect.NoError(t, err)
			if diff := cmp.Diff(test.want, got.Spec.Tolerations); diff != "" {
				t.Errorf("its tolerations (-want +got):\n%s", diff)
			}
			if again, err := s.create(got); err != nil || !cmp.Equal(got.Spec.Tolerations, again.Spec.Tolerations) {
				t.Errorf("after another pass it has %v, error %v", again.Spec.Tolerations, err)
			}
		})
	}
}
