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
		age   time.Duration
		gates []string
		// running is how many controllers run, bestNode their setting BEST_NODE.
		running  int32
		bestNode string
		found    bool
	}{
		"for long":                   {2 * time.Minute, []string{ours}, 1, "true", true},
		"just now":                   {30 * time.Second, []string{ours}, 1, "true", false},
		"by Kueue":                   {time.Hour, []string{"kueue.x-k8s.io/admission"}, 1, "true", false},
		"by Kueue, and not":          {time.Hour, []string{"kueue.x-k8s.io/admission", ours}, 1, "true", false},
		"by nobody":                  {time.Hour, nil, 1, "true", false},
		"by what it costs":           {time.Hour, []string{costly}, 1, "true", false},
		"… while no controller runs": {time.Hour, []string{costly}, 0, "true", true},
		"… while the setting is off": {time.Hour, []string{costly}, 1, "", true},
		"… while it says false":      {time.Hour, []string{costly}, 1, "false", true},
		"… just now":                 {30 * time.Second, []string{costly}, 0, "true", false},
		"by both":                    {time.Hour, []string{ours, costly}, 0, "true", true},
	} {
		t.Run(name, func(t *testing.T) {
			s := installed(t)
			d := s.Deployments[0]
			d.Status.ReadyReplicas = test.running
			d.Spec.Template.Spec.Containers = []corev1.Container{{Env: []corev1.EnvVar{
				{Name: "BEST_NODE", Value: test.bestNode}}}}
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
