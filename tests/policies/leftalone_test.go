// SPDX-License-Identifier: Apache-2.0

package admission

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"

	"github.com/gpushare/dra-driver-gpushare/pkg/apis/ack"
	"github.com/gpushare/dra-driver-gpushare/pkg/legacy"
)

// changing are the options that change pods, and what else does.
func changing(t *testing.T) []runtime.Object {
	t.Helper()
	return append(decoded(t, "testdata/deployments/options/nvidia-gpu-claims/policy.yaml",
		"testdata/deployments/options/best-node/policy.yaml",
		"testdata/deployments/options/best-node-gate/policy.yaml"),
		&corev1.Namespace{ObjectMeta: named(metav1.NamespacePublic)},
		&corev1.Namespace{ObjectMeta: named(corev1.NamespaceNodeLease)},
		cpuClass())
}

// withOptions is a server with all that changes pods.
func withOptions(t *testing.T) *server {
	t.Helper()
	return shared("with options", func() *server { return newServerWith(t, changing(t)) })
}

// Pods of namespaces that opted out, and of the system's, are neither changed nor refused nor
// warned of, whatever they ask for; but for what asks as on ACK and would run without a GPU.
func TestNamespacesThatAreLeftAlone(t *testing.T) {
	s, withoutRefusal := withOptions(t), newServerWith(t, changing(t), "gpushare-legacy-refuse")
	changes := func(before, after *corev1.Pod) string {
		return cmp.Diff(before.ObjectMeta, after.ObjectMeta) + cmp.Diff(before.Spec, after.Spec)
	}
	for name, asked := range map[string]*corev1.Pod{
		"a share":       podFor("mem 3"),
		"a GPU":         podFor("nvidia.com/gpu 1"),
		"CPUs":          pinned(pod("p", nil, withCPUs("c", "4", ""))),
		"virtual nodes": bursting("eci_only", limited("c", "")),
		"no such value": bursting("ecs", limited("c", "")),
		"a gang":        pod("p", gangOf("a", "2"), limited("c", "")),
		"Koordinator's gang": changed(podFor(""), func(p *corev1.Pod) {
			p.Annotations = map[string]string{ack.AnnotationGang: "a", ack.AnnotationGangMin: "2"}
		}),
		"ACK's scheduler": changed(podFor(""), func(p *corev1.Pod) {
			p.Spec.SchedulerName = "ack-co-scheduler"
		}),
		"a node": changed(podFor("nvidia.com/gpu 1"), func(p *corev1.Pod) { p.Spec.NodeName = "n1" }),
		"a claim, if need be": changed(bursting("eci", limited("c", "")), func(p *corev1.Pod) {
			p.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "x"}}
		}),
		"virtual nodes and a share": changed(bursting("eci_only", limited("c", "")), func(p *corev1.Pod) {
			p.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: legacy.ClaimName,
				ResourceClaimTemplateName: ptr.To("gpushare.mem.c.3")}}
		}),
		"virtual nodes and claims": changed(bursting("eci_only", limited("c", "")), func(p *corev1.Pod) {
			p.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "x"}}
		}),
	} {
		t.Run(name, func(t *testing.T) {
			s := s
			if legacy.Asks(asked) {
				s = withoutRefusal
			}
			var told warnings
			got, err := s.createWarned(&told, asked)
			if err == nil && len(told.texts) == 0 && changes(asked, got) == "" {
				t.Error("nothing happens in any namespace")
			}
			for _, namespace := range []string{optedOut, metav1.NamespaceSystem, metav1.NamespacePublic,
				corev1.NamespaceNodeLease} {
				p := asked.DeepCopy()
				p.Namespace = namespace
				var told warnings
				got, err := s.createWarned(&told, p)
				if err != nil || len(told.texts) > 0 {
					t.Errorf("in %s: error %v, warnings %q", namespace, err, told.texts)
				} else if diff := changes(p, got); diff != "" {
					t.Errorf("in %s (-want +got):\n%s", namespace, diff)
				}
			}
		})
	}
}
