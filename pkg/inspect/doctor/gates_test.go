// SPDX-License-Identifier: Apache-2.0

package doctor_test

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/pkg/inspect/doctor"
)

// A pod whose gate stays shut for longer than the controller takes is told of, one that others hold is not.
func TestGatedPods(t *testing.T) {
	const ours, costly = "gpu.aliyun.com/best-node", "gpu.aliyun.com/costly-claims"
	for name, test := range map[string]struct {
		age     time.Duration
		gates   []string
		stopped bool
		found   bool
	}{
		"for long":          {2 * time.Minute, []string{ours}, false, true},
		"just now":          {30 * time.Second, []string{ours}, false, false},
		"by Kueue":          {time.Hour, []string{"kueue.x-k8s.io/admission"}, false, false},
		"by Kueue, and not": {time.Hour, []string{"kueue.x-k8s.io/admission", ours}, false, false},
		"by nobody":         {time.Hour, nil, false, false},
		"by what it costs":  {time.Hour, []string{costly}, false, false},
		"by what it costs, while no controller runs": {time.Hour, []string{costly}, true, true},
		"by both, while no controller runs":          {time.Hour, []string{ours, costly}, true, true},
		"just now by what it costs, while none runs": {30 * time.Second, []string{costly}, true, false},
	} {
		t.Run(name, func(t *testing.T) {
			s := installed(t)
			if test.stopped {
				s.Deployments[0].Status.ReadyReplicas = 0
			}
			pod := s.Pods[3]
			pod.CreationTimestamp = metav1.NewTime(now.Add(-test.age))
			for _, gate := range test.gates {
				pod.Spec.SchedulingGates = append(pod.Spec.SchedulingGates, corev1.PodSchedulingGate{Name: gate})
			}
			found := foundBy("gates", s)
			expect.Equal(t, test.found, len(found) > 0, "found")
			for _, f := range found {
				if f.Level != doctor.Error || !strings.Contains(f.Text, "1 pods are held at the scheduling gate "+ours) ||
					!strings.HasSuffix(f.Text, ": a/p") {
					t.Errorf("found %+v", f)
				}
			}
		})
	}
}
