// SPDX-License-Identifier: Apache-2.0

package legacy

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
)

// That the policies say the same of any pod is tested in tests/policies.
func TestOfPod(t *testing.T) {
	container := func(name string, limits ...string) corev1.Container {
		c := corev1.Container{Name: name, Resources: corev1.ResourceRequirements{Limits: corev1.ResourceList{},
			Requests: corev1.ResourceList{}}}
		for _, limit := range limits {
			resourceName, amount, _ := strings.Cut(limit, "=")
			c.Resources.Limits[corev1.ResourceName(resourceName)] = resource.MustParse(amount)
			c.Resources.Requests[corev1.ResourceName(resourceName)] = resource.MustParse(amount)
		}
		return c
	}
	pod := func(labels map[string]string, containers ...corev1.Container) *corev1.Pod {
		return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: corev1.PodSpec{Containers: containers}}
	}
	for name, test := range map[string]struct {
		pod  *corev1.Pod
		want string
		err  string
	}{
		"memory": {pod(nil, container("c", "aliyun.com/gpu-mem=3", "cpu=2")), "gpushare.mem.c.3", ""},
		"thousands": {pod(map[string]string{"aliyun.com/gpu-count": "4"}, container("c", "aliyun.com/gpu-mem=2000")),
			"gpushare.mem-x4.c.2000", ""},
		"GPUs": {pod(map[string]string{"aliyun.com/gpu-count": "x"}, container("c", "aliyun.com/gpu=3")), "gpushare.gpu.c.3",
			""},
		"whole": {pod(map[string]string{"ack.gpushare.placement": "require-whole-device"},
			container("a", "aliyun.com/gpu-mem=7"), container("b", "aliyun.com/gpu-mem=8")),
			"gpushare.mem-whole.a.7.b.8", ""},
		"bytes": {pod(nil, container("c", "aliyun.com/gpu-mem=3Gi")), "", "aliyun.com/gpu-mem 3Gi of container c is not " +
			"a plain"},
		"nothing": {pod(nil, container("c", "cpu=1")), "-", ""},
	} {
		t.Run(name, func(t *testing.T) {
			if Asks(test.pod) != (test.want != "-") {
				t.Fatalf("it asks: %v", Asks(test.pod))
			}
			if test.want == "-" {
				return
			}
			request, err := OfPod(test.pod)
			if test.err != "" {
				expect.Error(t, err, test.err)
				return
			}
			if err != nil || request.Name() != test.want {
				t.Errorf("got %s, %v, want %s", request.Name(), err, test.want)
			}
			converted := Convert(test.pod, request)
			if Asks(converted) || *converted.Spec.ResourceClaims[0].ResourceClaimTemplateName != test.want {
				t.Errorf("converted to %+v", converted.Spec)
			}
			if !Asks(test.pod) {
				t.Error("the pod itself was changed")
			}
		})
	}
}
