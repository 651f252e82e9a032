// SPDX-License-Identifier: Apache-2.0

package admission

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/legacy"
)

const nvidiaGPU = "nvidia.com/gpu"

// withClaimsForGPUs is a server with the option nvidia-gpu-claims.
func withClaimsForGPUs(t *testing.T, without ...string) *server {
	t.Helper()
	const dir = "testdata/deployments/options/nvidia-gpu-claims/"
	return shared("nvidia-gpu-claims without "+strings.Join(without, " "), func() *server {
		return newServerWith(t, decoded(t, dir+"policy.yaml", dir+"refuse.yaml"), without...)
	})
}

// wholeGPUs is "TEMPLATE CONTAINER:REQUEST …" of the claim for whole GPUs that a pod has, and
// "CONTAINER=N" of each container that still asks for them by their resource.
func wholeGPUs(p *corev1.Pod) string {
	var parts []string
	for _, claim := range p.Spec.ResourceClaims {
		if claim.Name == legacy.ClaimNVIDIA {
			parts = append(parts, ptr.Deref(claim.ResourceClaimTemplateName, ""))
		}
	}
	for _, c := range members(p) {
		for _, claim := range c.Resources.Claims {
			if claim.Name == legacy.ClaimNVIDIA {
				parts = append(parts, c.Name+":"+claim.Request)
			}
		}
		for _, amounts := range []corev1.ResourceList{c.Resources.Limits, c.Resources.Requests} {
			if n, asks := amounts[nvidiaGPU]; asks {
				parts = append(parts, c.Name+"="+n.String())
			}
		}
	}
	return strings.Join(parts, " ")
}

// With the option, and only then, limits of nvidia.com/gpu become a claim, and what cannot
// stays as it is.
func TestOptionClaimsForGPUs(t *testing.T) {
	with, without := withClaimsForGPUs(t), newServer(t)
	one := func() *corev1.Pod { return podFor("nvidia.com/gpu 1") }
	long := strings.Repeat("a", 62)
	for name, test := range map[string]struct {
		pod  *corev1.Pod
		want string
	}{
		"one":       {one(), "gpushare.nvidia.c.1 c:c"},
		"several":   {podFor("nvidia.com/gpu 8"), "gpushare.nvidia.c.8 c:c"},
		"the most":  {podFor("nvidia.com/gpu 12"), "gpushare.nvidia.c.12 c:c"},
		"none of c": {pod("p", nil, limited("c", "nvidia.com/gpu 0"), limited("d", "")), "c=0 c=0"},
		"two of three containers": {
			pod("p", nil, limited("a", "nvidia.com/gpu 1"), limited("b", ""), limited("c", "nvidia.com/gpu 2")),
			"gpushare.nvidia.a.1.c.2 a:a c:c"},
		"a zero beside": {pod("p", nil, limited("a", "nvidia.com/gpu 0"), limited("c", "nvidia.com/gpu 1")),
			"gpushare.nvidia.c.1 c:c"},
		"a sidecar": {withInit(podFor("nvidia.com/gpu 1"),
			sidecar(limited("s", "nvidia.com/gpu 1"))), "gpushare.nvidia.c.1.s.1 c:c s:s"},
		"an init container": {withInit(podFor("nvidia.com/gpu 2"),
			limited("i", "nvidia.com/gpu 1")), "gpushare.nvidia.c.2 c:c i:c"},
		"an init container that needs the second's": {withInit(pod("p", nil, limited("a", "nvidia.com/gpu 1"),
			limited("b", "nvidia.com/gpu 2")), limited("i", "nvidia.com/gpu 2")), "gpushare.nvidia.a.1.b.2 a:a b:b i:b"},
		"of ACK's scheduler": {changed(one(), func(p *corev1.Pod) { p.Spec.SchedulerName = "ack-co-scheduler" }),
			"gpushare.nvidia.c.1 c:c"},
		"a claim of its own beside": {changed(one(), func(p *corev1.Pod) {
			p.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "x", ResourceClaimTemplateName: ptr.To("mine")}}
		}), "gpushare.nvidia.c.1 c:c"},
		"in a gang": {changed(one(), func(p *corev1.Pod) { p.Labels = gangOf("g", "2") }), "gpushare.nvidia.c.1 c:c"},

		"an init container that needs more": {withInit(podFor("nvidia.com/gpu 1"),
			limited("i", "nvidia.com/gpu 2")), "c=1 c=1 i=2 i=2"},
		"an init container alone": {withInit(podFor(""), limited("i", "nvidia.com/gpu 1")), "i=1 i=1"},
		"more than a claim holds": {podFor("nvidia.com/gpu 33"), "c=33 c=33"},
		"more together": {pod("p", nil, limited("a", "nvidia.com/gpu 16"), limited("b", "nvidia.com/gpu 17")),
			"a=16 a=16 b=17 b=17"},
		"thousands": {podFor("nvidia.com/gpu 2000"), "c=2k c=2k"},
		"names that do not fit": {pod("p", nil, limited(long+"a", "nvidia.com/gpu 1"), limited(long+"b",
			"nvidia.com/gpu 1"), limited(long+"c", "nvidia.com/gpu 1"), limited(long+"d", "nvidia.com/gpu 1")),
			fmt.Sprintf("gpushare.nvidia.0.1.1.1.2.1.3.1 %[1]sa:0 %[1]sb:1 %[1]sc:2 %[1]sd:3", long)},
		"a request without a limit": {pod("p", nil, requested("c", "nvidia.com/gpu 1")), "c=1"},
		"another request": {changed(one(), func(p *corev1.Pod) {
			p.Spec.Containers[0].Resources.Requests = limited("c", "nvidia.com/gpu 2").Resources.Limits
		}), "c=1 c=2"},
		"another scheduler": {changed(one(), func(p *corev1.Pod) { p.Spec.SchedulerName = "volcano" }), "c=1 c=1"},
		"for virtual nodes as well": {changed(one(), func(p *corev1.Pod) {
			p.Annotations = map[string]string{"alibabacloud.com/burst-resource": "eci"}
		}), "c=1 c=1"},
		"for virtual nodes alone": {changed(one(), func(p *corev1.Pod) {
			p.Annotations = map[string]string{"alibabacloud.com/burst-resource": "eci_only"}
		}), "c=1 c=1"},
		"opted out":               {optingOut(one()), "c=1 c=1"},
		"its namespace opted out": {in(optedOut, one()), "c=1 c=1"},
		"the system's":            {in(metav1.NamespaceSystem, one()), "c=1 c=1"},
		"another resource":        {podFor("nvidia.com/gpu.shared 1"), ""},
	} {
		t.Run(name, func(t *testing.T) {
			first, err := with.create(test.pod)
			expect.NoError(t, err)
			// The API server asks the policies again when one of them has changed the pod.
			got, err := with.create(first)
			expect.NoError(t, err)
			if wholeGPUs(got) != test.want {
				t.Errorf("it has %q, want %q", wholeGPUs(got), test.want)
			}
			converted := strings.HasPrefix(test.want, "gpushare.nvidia.")
			if name, _, _ := strings.Cut(test.want, " "); converted {
				if _, err := legacy.ParseName(name); err != nil {
					t.Error(err)
				}
			}
			if got.Labels[v1alpha1.LabelLegacy] == "true" != converted {
				t.Errorf("it is labelled %v", got.Labels)
			}
			plain, err := without.create(test.pod)
			if err != nil || strings.Contains(wholeGPUs(plain), "gpushare") {
				t.Errorf("without the option it has %q, %v", wholeGPUs(plain), err)
			}
			// What the API server stores can be applied and changed, and so can the manifest.
			for what, again := range map[string]*corev1.Pod{"it": got, "its manifest": test.pod} {
				changed := again.DeepCopy()
				changed.Spec.SchedulerName = got.Spec.SchedulerName
				stored, err := with.update(got, changed)
				expect.NoError(t, err)
				var now, before []corev1.ResourceRequirements
				for i := range members(stored) {
					now, before = append(now, members(stored)[i].Resources), append(before, members(got)[i].Resources)
					now[i].Claims, before[i].Claims = nil, nil
				}
				if diff := cmp.Diff(before, now, empty); diff != "" {
					t.Errorf("%s, applied again, changes the resources (-before +after):\n%s", what, diff)
				}
			}
		})
	}
}

// Another amount than the pod was converted from is for the API server to refuse.
func TestAnotherNumberOfGPUsAppliedAgain(t *testing.T) {
	s := withClaimsForGPUs(t)
	got, err := s.create(podFor("nvidia.com/gpu 1"))
	expect.NoError(t, err)
	if got.Annotations[v1alpha1.AnnotationNVIDIARequest] != `{"c":"1"}` {
		t.Errorf("it was converted from %v", got.Annotations)
	}
	again, err := s.update(got, podFor("nvidia.com/gpu 2"))
	if err != nil || wholeGPUs(again) != "c=2 c=2" {
		t.Errorf("it has %q, %v", wholeGPUs(again), err)
	}
}

// What a policy has changed LimitRanger looks at again: a LimitRange on nvidia.com/gpu puts the
// limit back that has become a claim, and the pod would take its GPUs twice.
func TestLimitRangeOnGPUs(t *testing.T) {
	s := withClaimsForGPUs(t)
	const name = "a LimitRange of namespace " + team
	limit := func(p *corev1.Pod) {
		for i := range p.Spec.Containers {
			amounts := limited("", "nvidia.com/gpu 1").Resources.Limits
			p.Spec.Containers[i].Resources.Limits, p.Spec.Containers[i].Resources.Requests = amounts, amounts
		}
	}
	for what, asks := range map[string]*corev1.Pod{
		"one": podFor("nvidia.com/gpu 1"), "beside a share": pod("p", nil, limited("c",
			"mem 3 nvidia.com/gpu 1")), "of several": pod("p", nil, limited("c", "nvidia.com/gpu 2"), limited("d", "")),
	} {
		got, err := s.create(asks)
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		if _, err := s.create(changed(got.DeepCopy(), limit)); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s, with the limit again: %v, want to be told of %s", what, err, name)
		}
		// What is left of the claim in a copy of the pod is nobody's harm.
		if _, err := s.create(changed(asks.DeepCopy(), func(p *corev1.Pod) {
			p.Annotations = got.Annotations
			p.Labels = map[string]string{v1alpha1.LabelLegacy: "false"}
			limit(p)
		})); err != nil {
			t.Errorf("%s, a copy that opts out: %v", what, err)
		}
		if _, err := s.update(got, changed(got.DeepCopy(), func(p *corev1.Pod) {
			p.Labels["changed"] = "true"
		})); err != nil {
			t.Errorf("%s, changed: %v", what, err)
		}
	}
}

// A share and whole GPUs in one pod are two claims, whichever container asks for them.
func TestGPUsBesideAShare(t *testing.T) {
	s := withClaimsForGPUs(t)
	for name, test := range map[string]struct {
		pod         *corev1.Pod
		whole, part string
	}{
		"in one container": {podFor("mem 3 nvidia.com/gpu 1"), "gpushare.nvidia.c.1 c:c", "gpushare.mem.c.3 c:c"},
		"in two": {pod("p", nil, limited("a", "mem 3"), limited("b", "nvidia.com/gpu 2")), "gpushare.nvidia.b.2 b:b",
			"gpushare.mem.a.3 a:a"},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := s.create(test.pod)
			expect.NoError(t, err)
			if part := template(got) + " " + uses(got); wholeGPUs(got) != test.whole || part != test.part {
				t.Errorf("it has %q and %q, want %q and %q", wholeGPUs(got), part, test.whole, test.part)
			}
			again, err := s.update(got, test.pod)
			expect.NoError(t, err)
			for _, c := range members(again) {
				if len(c.Resources.Limits) != 1 || len(c.Resources.Requests) != 1 {
					t.Errorf("applied again, %s asks for %v", c.Name, c.Resources)
				}
			}
		})
	}
}

// A pod that names its node is told so, as without the option.
func TestGPUsOnANamedNode(t *testing.T) {
	p := podFor("nvidia.com/gpu 1")
	p.Spec.NodeName = "n1"
	_, err := withClaimsForGPUs(t).create(p)
	expect.Error(t, err, "asks for nvidia.com/gpu")
}
