// SPDX-License-Identifier: Apache-2.0

package admission

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/ptr"

	"github.com/gpushare/dra-driver-gpushare/pkg/apis/ack"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/legacy"
)

// withCPUs is a container with so many CPUs, as request and limit, and what limited gives it.
func withCPUs(name, cpus, amounts string) corev1.Container {
	c := limited(name, amounts)
	c.Resources.Limits[corev1.ResourceCPU] = resource.MustParse(cpus)
	c.Resources.Requests[corev1.ResourceCPU] = resource.MustParse(cpus)
	return c
}

// pinned asks for CPUs of its own.
func pinned(p *corev1.Pod) *corev1.Pod {
	p.Annotations = map[string]string{ack.AnnotationCPUSet: "true"}
	return p
}

// claimsOf are a pod's claims by template, as NAME=TEMPLATE, and the references of its
// containers, as CONTAINER:NAME or CONTAINER:NAME/REQUEST.
func claimsOf(p *corev1.Pod) string {
	var words []string
	for _, c := range p.Spec.ResourceClaims {
		words = append(words, c.Name+"="+ptr.Deref(c.ResourceClaimTemplateName, ""))
	}
	for _, c := range p.Spec.Containers {
		for _, claim := range c.Resources.Claims {
			word := c.Name + ":" + claim.Name
			if claim.Request != "" {
				word += "/" + claim.Request
			}
			words = append(words, word)
		}
	}
	return strings.Join(words, " ")
}

// twice is what becomes of a pod in an API server, which has policies look again at what
// others changed, in whatever order they come.
func (s *server) twice(t *testing.T, p *corev1.Pod) *corev1.Pod {
	t.Helper()
	for range 2 {
		var err error
		if p, err = s.create(p); err != nil {
			t.Fatal(err)
		}
	}
	return p
}

func TestPodsWithCPUsOfTheirOwn(t *testing.T) {
	s, without := withCPUClass(t), newServer(t)
	count := map[string]string{ack.PodLabelCount: "2"}
	long := strings.Repeat("a", 62)
	for name, test := range map[string]struct {
		pod  *corev1.Pod
		want string
	}{
		"of the document": {pinned(pod("p", nil, withCPUs("nginx-numa", "4", ""))),
			"gpushare-cpus-0=gpushare.cpu.nginx-numa.4 nginx-numa:gpushare-cpus-0"},
		"of milli-CPUs": {pinned(pod("p", nil, withCPUs("c", "2000m", ""))),
			"gpushare-cpus-0=gpushare.cpu.c.2 c:gpushare-cpus-0"},
		"two of three containers": {pinned(pod("p", nil, withCPUs("a", "4", ""), withCPUs("b", "1500m", ""),
			withCPUs("c",
				"1", ""))),
			"gpushare-cpus-0=gpushare.cpu.a.4 gpushare-cpus-2=gpushare.cpu.c.1 a:gpushare-cpus-0 c:gpushare-cpus-2"},
		"with a share": {pinned(pod("p", nil, withCPUs("c", "8", "mem 3"))),
			"gpushare=gpushare.mem-cpu8.c.3 c:gpushare/c c:gpushare/cpus"},
		"with memory and compute": {pinned(pod("p", nil, withCPUs("c", "8", "mem 3 core 20"))),
			"gpushare=gpushare.core-cpu8.c.3-20 c:gpushare/c c:gpushare/cpus"},
		"with whole GPUs": {pinned(pod("p", nil, withCPUs("c", "64", "gpu 8"))),
			"gpushare=gpushare.gpu-cpu64.c.8 c:gpushare/c c:gpushare/cpus"},
		"with two GPUs of two containers": {pinned(pod("p", count, withCPUs("a", "2", "mem 2"), withCPUs("b", "3",
			"mem 4"))),
			"gpushare=gpushare.mem-x2-cpu2.a.2.b.4 gpushare-cpus-1=gpushare.cpu.b.3 a:gpushare/a-card0 a:gpushare/a-card1 " +
				"a:gpushare/cpus b:gpushare/b-card0 b:gpushare/b-card1 b:gpushare-cpus-1"},
		"the first without a whole number": {pinned(pod("p", nil, withCPUs("a", "500m", "mem 2"), withCPUs("b", "3",
			"mem 4"))),
			"gpushare=gpushare.mem.a.2.b.4 gpushare-cpus-1=gpushare.cpu.b.3 a:gpushare/a b:gpushare/b b:gpushare-cpus-1"},
		"beside one without a GPU": {pinned(pod("p", nil, withCPUs("a", "2", ""), withCPUs("b", "3", "mem 4"))),
			"gpushare=gpushare.mem-cpu3.b.4 gpushare-cpus-0=gpushare.cpu.a.2 a:gpushare-cpus-0 b:gpushare/b b:gpushare/cpus"},
		"a container named as the request": {pinned(pod("p", nil, withCPUs("a", "2", "mem 1"), withCPUs("cpus", "3",
			"mem 4"))),
			"gpushare=gpushare.mem.a.1.cpus.4 gpushare-cpus-0=gpushare.cpu.a.2 gpushare-cpus-1=gpushare.cpu.cpus.3 " +
				"a:gpushare/a a:gpushare-cpus-0 cpus:gpushare/cpus cpus:gpushare-cpus-1"},
		"names that leave no room": {pinned(pod("p", nil, withCPUs(long, "2", "mem 1"), withCPUs(long+"b", "1500m",
			"mem 1"),
			withCPUs(long+"c", "1500m", "mem 1"), withCPUs(strings.Repeat("d", 38), "500m", "mem 1"))),
			"gpushare=gpushare.mem." + long + ".1." + long + "b.1." + long + "c.1." + strings.Repeat("d",
				38) + ".1 " +
				"gpushare-cpus-0=gpushare.cpu." + long + ".2 " + long + ":gpushare/" + long + " " + long + ":gpushare-cpus-0 " +
				long + "b:gpushare/" + long + "b " + long + "c:gpushare/" + long + "c " + strings.Repeat("d",
				38) + ":gpushare/" +
				strings.Repeat("d", 38)},
		"long names": {pinned(pod("p", nil, withCPUs("0", "500m", ""), withCPUs("cpus", "2", "mem 1"),
			withCPUs(long+"b", "3",
				"mem 1"), withCPUs(long+"c", "1500m", "mem 1"), withCPUs(long+"d", "1500m", "mem 1"), withCPUs(long+"e",
				"1500m", "mem 1"))),
			"gpushare=gpushare.mem-cpu2.0.1.1.1.2.1.3.1.4.1 gpushare-cpus-2=gpushare.cpu." + long + "b.3 " +
				"cpus:gpushare/0 cpus:gpushare/cpus " + long + "b:gpushare/1 " + long + "b:gpushare-cpus-2 " + long +
				"c:gpushare/2 " + long + "d:gpushare/3 " + long + "e:gpushare/4"},
		"more shares than leave room": {in(counted, pinned(pod("p", map[string]string{ack.PodLabelCount: "32"},
			withCPUs("c", "2", "mem 32")))),
			"gpushare=gpushare.mem-x32.c.32 gpushare-cpus-0=gpushare.cpu.c.2 c:gpushare/c c:gpushare-cpus-0"},
		"with nvidia.com/gpu": {pinned(pod("p", nil, withCPUs("c", "2", "nvidia.com/gpu 1"))),
			"gpushare-cpus-0=gpushare.cpu.c.2 c:gpushare-cpus-0"},
		"beside a claim": {changed(pinned(pod("p", nil, withCPUs("c", "2", ""))), func(p *corev1.Pod) {
			p.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "x", ResourceClaimName: ptr.To("x")}}
			p.Spec.Containers[0].Resources.Claims = []corev1.ResourceClaim{{Name: "x"}}
		}), "x= gpushare-cpus-0=gpushare.cpu.c.2 c:x c:gpushare-cpus-0"},

		"no annotation": {pod("p", nil, withCPUs("c", "4", "")), ""},
		"another value": {changed(pinned(pod("p", nil, withCPUs("c", "4", ""))), func(p *corev1.Pod) {
			p.Annotations[ack.AnnotationCPUSet] = "false"
		}), ""},
		"part of a CPU":     {pinned(pod("p", nil, withCPUs("c", "500m", ""))), ""},
		"and a half":        {pinned(pod("p", nil, withCPUs("c", "4500m", ""))), ""},
		"more than any has": {pinned(pod("p", nil, withCPUs("c", "5k", ""))), ""},
		"no limit": {changed(pinned(pod("p", nil, withCPUs("c", "4", ""))), func(p *corev1.Pod) {
			p.Spec.Containers[0].Resources.Limits = nil
		}), ""},
		"nothing": {changed(pinned(pod("p", nil, withCPUs("c", "4", ""))), func(p *corev1.Pod) {
			p.Spec.Containers[0].Resources = corev1.ResourceRequirements{}
		}), ""},
		"a smaller request": {changed(pinned(pod("p", nil, withCPUs("c", "4", ""))), func(p *corev1.Pod) {
			p.Spec.Containers[0].Resources.Requests[corev1.ResourceCPU] = resource.MustParse("2")
		}), ""},
		"for another scheduler": {changed(pinned(pod("p", nil, withCPUs("c", "4", ""))), func(p *corev1.Pod) {
			p.Spec.SchedulerName = "volcano"
		}), ""},
		"on a node already": {changed(pinned(pod("p", nil, withCPUs("c", "4", ""))), func(p *corev1.Pod) {
			p.Spec.NodeName = "n1"
		}), ""},
		"for virtual nodes": {changed(pinned(pod("p", nil, withCPUs("c", "4", ""))), func(p *corev1.Pod) {
			p.Annotations[ack.AnnotationBurst] = "eci"
		}), ""},
		"opted out": {pinned(pod("p", map[string]string{v1alpha1.LabelLegacy: "false"},
			withCPUs("c", "4", ""))), ""},
		"in a namespace without": {in(optedOut, pinned(pod("p", nil, withCPUs("c", "4", "")))), ""},
	} {
		t.Run(name, func(t *testing.T) {
			got := s.twice(t, test.pod)
			if claims := claimsOf(got); claims != test.want {
				t.Errorf("its claims are\n%s, want\n%s", claims, test.want)
			}
			if again := s.twice(t, got); !cmp.Equal(got, again) {
				t.Errorf("once more (-first +second):\n%s", cmp.Diff(got, again))
			}
			for _, claim := range got.Spec.ResourceClaims {
				if name := ptr.Deref(claim.ResourceClaimTemplateName, ""); legacy.IsName(name) {
					if _, err := legacy.ParseName(name); err != nil {
						t.Error(err)
					}
					if got.Labels[v1alpha1.LabelLegacy] != "true" {
						t.Errorf("the controller does not find it by the labels %v", got.Labels)
					}
				}
			}
			// Without the class there are no such claims.
			if claims := claimsOf(without.twice(t, test.pod)); strings.Contains(claims, "cpu.") ||
				strings.Contains(claims, "-cpu") {
				t.Errorf("without DeviceClass %s its claims are %s", legacy.ClassCPUs, claims)
			}
		})
	}
}

// By a note on the pod gpu-compat-controller knows whom to tell.
func TestPodsThatAskForCPUsAreNoted(t *testing.T) {
	s := newServer(t)
	noted := func(p *corev1.Pod) bool {
		_, is := s.twice(t, p).Annotations[v1alpha1.AnnotationCPUSet]
		return is
	}
	if !noted(pinned(pod("p", nil, withCPUs("c", "4", "")))) {
		t.Error("a pod that asks is not noted")
	}
	if noted(pod("p", nil, withCPUs("c", "4", ""))) ||
		noted(pinned(pod("p", map[string]string{v1alpha1.LabelLegacy: "false"}, withCPUs("c", "4", "")))) {
		t.Error("a pod that does not ask is noted")
	}
}
