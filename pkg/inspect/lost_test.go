// SPDX-License-Identifier: Apache-2.0

package inspect_test

import (
	"encoding/json"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/pkg/inspect"
	"github.com/gpushare/dra-driver-gpushare/pkg/mode"
)

// Of four GPUs of 15 GiB, shares have 12 of one and all of another. A GPU goes with 10 CPUs by them, and 10 are left.
func TestLostGPUsAreALineAndFields(t *testing.T) {
	cpus := func(amount string) corev1.ResourceList {
		return corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(amount)}
	}
	pod := func(name, requests string) *corev1.Pod {
		return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: name, UID: types.UID("a/" + name)},
			Spec: corev1.PodSpec{NodeName: "n1", Containers: []corev1.Container{{Resources: corev1.ResourceRequirements{
				Requests: cpus(requests)}}}}}
	}
	n1 := node("n1", "10.0.0.1")
	n1.Status.Allocatable = cpus("28")
	in := inspect.Input{Slices: publish("n1", mode.Share, v100, v100, v100, v100), Nodes: []*corev1.Node{n1},
		Claims: []*resourceapi.ResourceClaim{claim("a/p", "n1 gpu-0-share 12"), claim("a/q", "n1 gpu-1-share 15")}}
	const line = "Free GPUs In Cluster: 2.2 (stranded 1.2, fragmented 0.2)"
	if text := summary(in, inspect.Style{}); strings.Contains(text, "Free GPUs") {
		t.Errorf("where nobody knows the pods, it prints\n%s", text)
	}
	in.Bound = []*corev1.Pod{pod("p", "8"), pod("q", "10")}
	for _, style := range []inspect.Style{{}, {Width: 60}} {
		if text := summary(in, style); !strings.HasSuffix(text, "\n"+line+"\n") {
			t.Errorf("it does not end with %q:\n%s", line, text)
		}
	}
	data, err := json.Marshal(inspect.New(in))
	expect.NoError(t, err)
	expect.Says(t, string(data), `"lost":{"freeGPUs":2.2,"strandedGPUs":1.2,"fragmentedGPUs":0.2}`,
		`"strandedGPUs":1.2,"cards"`)
	in.Claims, in.Bound = nil, in.Bound[:1]
	if text := summary(in, inspect.Style{}); strings.Contains(text, "Free GPUs") {
		t.Errorf("where nothing is lost, it prints\n%s", text)
	}
}
