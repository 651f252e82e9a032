// SPDX-License-Identifier: Apache-2.0

package admission

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"

	"github.com/gpushare/dra-driver-gpushare/pkg/apis/ack"
)

// withNIC has the first container use claims that the pod's author wrote.
func withNIC(p *corev1.Pod, requests ...string) *corev1.Pod {
	p.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "nic", ResourceClaimName: ptr.To("nic")}}
	for _, request := range requests {
		claims := &p.Spec.Containers[0].Resources.Claims
		*claims = append(*claims, corev1.ResourceClaim{Name: "nic", Request: request})
	}
	return p
}

// applied is what kubectl makes of a pod when its manifest is applied again: a list of claims is
// the manifest's, if that has one, and amounts are added.
func applied(stored, manifest *corev1.Pod) *corev1.Pod {
	p := stored.DeepCopy()
	for i, c := range manifest.Spec.Containers {
		resources := &p.Spec.Containers[i].Resources
		resources.Limits, resources.Requests = c.Resources.Limits, c.Resources.Requests
		if len(c.Resources.Claims) > 0 {
			resources.Claims = c.Resources.Claims
		}
	}
	return p
}

// What was added to a list of claims that the manifest has is missing when it is applied again.
func TestPodsWithClaimsOfTheirOwnAppliedAgain(t *testing.T) {
	const dir = "testdata/deployments/options/nvidia-gpu-claims/"
	s := newServerWith(t, append(decoded(t, dir+"policy.yaml", dir+"refuse.yaml"), runtime.Object(cpuClass())))
	for name, manifest := range map[string]*corev1.Pod{
		"memory": withNIC(podFor("mem 3"), ""),
		"of two GPUs and containers": withNIC(pod("p", map[string]string{ack.PodLabelCount: "2"}, limited("a", "mem 2"),
			limited("b", "mem 4")), "rx", "tx"),
		"beside one that asks": withNIC(pod("p", nil, limited("a", ""), limited("b", "mem 4")), ""),
		"nvidia.com/gpu":       withNIC(podFor("nvidia.com/gpu 1"), "rx"),
		"CPUs and memory":      withNIC(pinned(pod("p", nil, withCPUs("c", "2", "mem 3"))), ""),
		"CPUs":                 withNIC(pinned(pod("p", nil, withCPUs("c", "2", ""))), ""),
		"nothing":              withNIC(podFor(""), "rx"),
	} {
		t.Run(name, func(t *testing.T) {
			stored := s.twice(t, manifest)
			got, err := s.update(stored, applied(stored, manifest))
			if diff := cmp.Diff(stored, got); err != nil || diff != "" {
				t.Errorf("%v (-before +after):\n%s", err, diff)
			}
			// Other claims of its own are a change, which is for the API server to refuse.
			other := applied(stored, changed(manifest.DeepCopy(), func(p *corev1.Pod) {
				p.Spec.Containers[0].Resources.Claims[0].Request = "other"
			}))
			if got, err = s.update(stored, other); err != nil || !cmp.Equal(got.Spec.Containers[0].Resources.Claims,
				other.Spec.Containers[0].Resources.Claims) {
				t.Errorf("with other claims it has %v, %v", got.Spec.Containers[0].Resources.Claims, err)
			}
		})
	}
}
