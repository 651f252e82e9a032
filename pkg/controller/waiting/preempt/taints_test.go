// SPDX-License-Identifier: Apache-2.0

package preempt

import (
	"errors"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/gpushare/dra-driver-gpushare/internal/apitest"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/controller/podstate"
	"github.com/gpushare/dra-driver-gpushare/pkg/mode"
)

// Nobody goes for a GPU that is closed, or stays for one that is free and closed. n1 has two
// GPUs, of which a has the first and b, whose priority is higher, the second.
func TestGPUsThatRulesClose(t *testing.T) {
	first := &resourceapi.DeviceTaintSelector{Driver: ptr.To(v1alpha1.DriverName), Pool: ptr.To("n1/gpu"),
		Device: ptr.To("gpu-0")}
	for name, test := range map[string]struct {
		change func(*stage)
		want   string
	}{
		"none":   {func(*stage) {}, "n1 a"},
		"one":    {func(s *stage) { s.closes(first) }, "n1 b"},
		"a free": {func(s *stage) { s.closes(first); s.empties("a") }, "n1 b"},
		"all":    {func(s *stage) { s.closes(&resourceapi.DeviceTaintSelector{}) }, "would not fit"},
		"others": {func(s *stage) {
			s.closes(nil)
			s.closes(&resourceapi.DeviceTaintSelector{Driver: ptr.To("other")})
			s.closes(&resourceapi.DeviceTaintSelector{Pool: ptr.To("n2/gpu")})
			s.closes(&resourceapi.DeviceTaintSelector{Device: ptr.To("gpu-2")})
		}, "n1 a"},
		"none, and the cluster keeps a": {func(s *stage) {
			s.refused = podstate.RefusedPods{"a": noon.Add(time.Minute)}
		}, "n1 b"},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStage(t)
			s.node("n1", mode.Exclusive)
			s.runs("n1", podOf("a", 1), "gpu")
			s.runs("n1", podOf("b", 4), "gpu")
			test.change(s)
			s.plans(wishes(podOf("p", 9), "gpu"), test.want)
		})
	}
}

// empties has a pod of the first node be gone, with its claim.
func (s *stage) empties(name string) {
	n := s.nodes[0]
	i := slices.IndexFunc(n.pods, func(pod *corev1.Pod) bool { return pod.Name == name })
	n.pods, n.claims = slices.Delete(n.pods, i, i+1), slices.Delete(n.claims, i, i+1)
}

// The rules are those of the API server. One that does not know them has none; while they
// cannot be read nobody is evicted.
func TestRulesOfTheAPIServer(t *testing.T) {
	resource := resourceapi.Resource("devicetaintrules")
	run(t, func(s *site) {
		rule := &resourceapi.DeviceTaintRule{ObjectMeta: metav1.ObjectMeta{Name: "repair"}}
		rule.Spec.DeviceSelector = &resourceapi.DeviceTaintSelector{Device: ptr.To("gpu-1")}
		rule.Spec.Taint = resourceapi.DeviceTaint{Key: "repair", Effect: resourceapi.DeviceTaintEffectNoExecute}
		apitest.Create(s, s.client, rule)
		s.waits(podOf("p", 9), 1)
		s.after(time.Minute, "a")
	})
	run(t, func(s *site) {
		s.noRules = apierrors.NewNotFound(resource, "")
		s.waits(podOf("p", 9), 1)
		s.after(time.Minute, "b")
	})
	run(t, func(s *site) {
		s.noRules = apierrors.NewForbidden(resource, "", errors.New("no"))
		s.waits(podOf("p", 9), 1)
		s.after(time.Minute)
	})
}
