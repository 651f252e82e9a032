// SPDX-License-Identifier: Apache-2.0

package explain_test

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/ptr"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/pkg/explain"
	"github.com/gpushare/dra-driver-gpushare/pkg/mode"
	"github.com/gpushare/dra-driver-gpushare/pkg/scheduling"
)

// The scheduler makes a request for each container that runs as long as the pod, and
// one for what init containers need beyond these.
func TestClaimOfScheduler(t *testing.T) {
	c := func(name, gpus string) corev1.Container {
		requests := corev1.ResourceList{"cpu": resource.MustParse("1"), "example.com/nic": resource.MustParse("1")}
		if gpus != "" {
			requests["nvidia.com/gpu"] = resource.MustParse(gpus)
		}
		return corev1.Container{Name: name, Resources: corev1.ResourceRequirements{Requests: requests}}
	}
	sidecar := func(name, gpus string) corev1.Container {
		out := c(name, gpus)
		out.RestartPolicy = ptr.To(corev1.ContainerRestartPolicyAlways)
		return out
	}
	for name, test := range map[string]struct {
		init, containers []corev1.Container
		want             map[string]int64
	}{
		"none": {nil, []corev1.Container{c("a", "")}, nil},
		"zero": {nil, []corev1.Container{c("a", "0")}, nil},
		"one":  {nil, []corev1.Container{c("a", "2"), c("b", "")}, map[string]int64{"a": 2}},
		"two":  {nil, []corev1.Container{c("a", "2"), c("b", "1")}, map[string]int64{"a": 2, "b": 1}},
		"init within the others": {[]corev1.Container{c("i", "3")}, []corev1.Container{c("a", "2"), c("b", "1")},
			map[string]int64{"a": 2, "b": 1}},
		"init beyond the others": {[]corev1.Container{c("i", "4"), c("j", "5")}, []corev1.Container{c("a", "2"), c("b", "1")},
			map[string]int64{"a": 2, "b": 1, "j": 2}},
		"a sidecar": {[]corev1.Container{sidecar("s", "1"), c("i", "2")}, []corev1.Container{c("a", "1")},
			map[string]int64{"a": 1, "s": 1, "i": 1}},
		"a sidecar after init": {[]corev1.Container{c("i", "2"), sidecar("s", "1")}, []corev1.Container{c("a", "1")},
			map[string]int64{"a": 1, "s": 1}},
	} {
		t.Run(name, func(t *testing.T) {
			cluster, err := explain.New(engine, unlimited).Look(newSite(t).node("whole", "a100x8", mode.Exclusive).published())
			expect.NoError(t, err)
			got := scheduling.ClaimForExtended(
				&corev1.Pod{Spec: corev1.PodSpec{InitContainers: test.init, Containers: test.containers}}, cluster.ClassOf)
			if (got == nil) != (test.want == nil) {
				t.Fatalf("claim %v, want %v", got, test.want)
			}
			if got == nil {
				return
			}
			if len(got.Spec.Devices.Requests) != len(test.want) {
				t.Errorf("requests %v, want %v", got.Spec.Devices.Requests, test.want)
			}
			for _, r := range got.Spec.Devices.Requests {
				container := r.Name[len("nvidia.com/gpu of container "):]
				if r.Exactly.Count != test.want[container] || r.Exactly.DeviceClassName != wholeClass {
					t.Errorf("request %s: %d of %s, want %d", r.Name, r.Exactly.Count, r.Exactly.DeviceClassName, test.want[container])
				}
			}
		})
	}
}

// What a claim's author writes into its annotations does not pass it off as the scheduler's,
// of which nothing is ever too much: a device plugin may serve it.
func TestClaimThatSaysItIsTheSchedulers(t *testing.T) {
	marked := claim(request("gpu", shareClass, amount("memory", "90Gi")))
	marked.Annotations = map[string]string{resourceapi.ExtendedResourceClaimAnnotation: "true"}
	e := newSite(t).node("share", "a10x4", mode.Share).explain(podOn(""), marked)
	if !strings.HasPrefix(e.Message, never) {
		t.Errorf("it is told %q, want %q", e.Message, never+"…")
	}
}
