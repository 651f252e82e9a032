// SPDX-License-Identifier: Apache-2.0

package admission

import (
	"context"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/client-go/kubernetes/scheme"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/legacy"
)

// createBefore is what becomes of a new pod where a mutating webhook comes after the policies, and
// the API server asks those again that had to do with the pod before.
func (s *server) createBefore(webhook func(*corev1.Pod), p *corev1.Pod) (*corev1.Pod, error) {
	got := p.DeepCopy()
	attributes := attributesOf(somebody, got, nil, "")
	objects := admission.NewObjectInterfacesFromScheme(scheme.Scheme)
	if err := s.Mutating.Admit(context.Background(), attributes, objects); err != nil {
		return nil, err
	}
	webhook(got)
	attributes.GetReinvocationContext().SetIsReinvoke()
	if err := s.Mutating.Admit(context.Background(), attributes, objects); err != nil {
		return nil, err
	}
	return got, s.Validate(context.Background(), attributes)
}

// asksFor has the first container ask for these amounts instead of its own.
func asksFor(amounts string) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.Spec.Containers[0].Resources = limited("", amounts).Resources }
}

// cpuClass is the class by which policies know that dra-driver-cpu is installed.
func cpuClass() *resourceapi.DeviceClass {
	return &resourceapi.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: legacy.ClassCPUsMarker,
		Labels: map[string]string{v1alpha1.LabelCPUClass: legacy.ClassCPUs}}}
}

// withCPUClass is a server where dra-driver-cpu is installed.
func withCPUClass(t *testing.T) *server {
	t.Helper()
	return shared("with CPUs", func() *server {
		return newServerWith(t, []runtime.Object{cpuClass()})
	})
}

// A policy whose conditions did not hold is not asked again: limits that a webhook adds to a pod
// without are refused, in words that lead to the webhook.
func TestLimitsThatAWebhookAdds(t *testing.T) {
	s := newServer(t)
	_, err := s.createBefore(asksFor("mem 3"), podFor(""))
	expect.Error(t, err, "asks for aliyun.com/gpu-mem and was not given a claim instead")
	expect.Error(t, err, "Or did a webhook add the limit, after the policies had looked? Then create the pod with it")
}

// Spark's operator adds the limits of a SparkApplication to pods that Spark has made without: the policies look at
// such pods before and after, and change nothing of those that ask for no GPU.
func TestLimitsThatSparksOperatorAdds(t *testing.T) {
	s := newServer(t)
	ofSpark := func(c corev1.Container) *corev1.Pod {
		return pod("p", map[string]string{"sparkoperator.k8s.io/launched-by-spark-operator": "true"}, c)
	}
	for name, test := range map[string]struct{ added, want string }{
		"memory":  {"mem 3", "gpushare.mem.c.3"},
		"GPUs":    {"gpu 2", "gpushare.gpu.c.2"},
		"compute": {"mem 3 core 20", "gpushare.core.c.3-20"},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := s.createBefore(asksFor(test.added), ofSpark(limited("c", "")))
			if err != nil || template(got) != test.want {
				t.Errorf("the template is %q (%v), want %q", template(got), err, test.want)
			}
		})
	}
	_, err := s.createBefore(asksFor("mem 3Gi"), ofSpark(limited("c", "")))
	expect.Error(t, err, "aliyun.com/gpu-mem 3Gi of container c is not a plain whole number of GiB")

	got, err := s.createBefore(func(*corev1.Pod) {}, ofSpark(limited("c", "")))
	expect.NoError(t, err)
	if other, _ := s.create(podFor("")); !equality.Semantic.DeepEqual(got.Spec, other.Spec) ||
		len(got.Annotations) > 0 {
		t.Errorf("a pod that asks for no GPU became %v", got)
	}
}

// A policy whose conditions held is asked again.
func TestWhatAWebhookChanges(t *testing.T) {
	s := withClaimsForGPUs(t)
	got, err := s.createBefore(asksFor("mem 3"), podFor("mem 3Gi"))
	if err != nil || template(got) != "gpushare.mem.c.3" {
		t.Errorf("an amount that it corrects: %v, %v", got, err)
	}
	named := func(p *corev1.Pod) { p.Spec.SchedulerName = "ack-co-scheduler" }
	asked := changed(podFor(""), named)
	if got, err = s.createBefore(named, asked); err != nil || got.Spec.SchedulerName != corev1.DefaultSchedulerName {
		t.Errorf("a scheduler that it sets back: %v, %v", got, err)
	}
	gang := func(p *corev1.Pod) { p.Labels = gangOf("a", "2") }
	got, err = s.createBefore(gang, pod("p", gangOf("a", "two"), limited("c", "")))
	if err != nil || got.Spec.SchedulingGroup == nil {
		t.Errorf("a gang that it corrects: %v, %v", got, err)
	}
	terms := func(p *corev1.Pod) {
		required := p.Spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution
		required.NodeSelectorTerms = []corev1.NodeSelectorTerm{{MatchExpressions: []corev1.NodeSelectorRequirement{
			{Key: "zone", Operator: corev1.NodeSelectorOpExists}}}}
	}
	if got, err = s.createBefore(terms, bursting("eci_only", limited("c", ""))); err != nil {
		t.Fatal(err)
	}
	required := got.Spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution
	if len(required.NodeSelectorTerms[0].MatchExpressions) != 2 {
		t.Errorf("terms that it sets: %v", required)
	}
}

// A webhook may put its container before the others, whose CPUs are claimed already.
func TestCPUsOfContainersThatMove(t *testing.T) {
	s := withCPUClass(t)
	injected := func(p *corev1.Pod) {
		p.Spec.Containers = slices.Insert(p.Spec.Containers, 0, limited("proxy", ""))
	}
	for name, test := range map[string]struct {
		pod  *corev1.Pod
		want string
	}{
		"one": {pod("p", nil, withCPUs("a", "4", "")), "gpushare-cpus-0=gpushare.cpu.a.4 a:gpushare-cpus-0"},
		"two": {pod("p", nil, withCPUs("a", "4", ""), withCPUs("b", "2", "")),
			"gpushare-cpus-0=gpushare.cpu.a.4 gpushare-cpus-1=gpushare.cpu.b.2 a:gpushare-cpus-0 b:gpushare-cpus-1"},
		"with a share": {pod("p", nil, withCPUs("a", "4", "mem 3")),
			"gpushare=gpushare.mem-cpu4.a.3 gpushare-cpus-0=gpushare.cpu.proxy.1 proxy:gpushare-cpus-0 a:gpushare/a " +
				"a:gpushare/cpus"},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := s.createBefore(injected, pinned(test.pod))
			expect.NoError(t, err)
			if claims := claimsOf(got); claims != test.want {
				t.Errorf("its claims are\n%s, want\n%s", claims, test.want)
			}
		})
	}
}

// A limit of shares holds for pods with CPUs of their own, whose template says those as well.
func TestOptionShareLimitBesideCPUs(t *testing.T) {
	s := withCPUClass(t)
	for amounts, refused := range map[string]string{
		"mem 8 core 50": "",
		"mem 9":         "container c asks for aliyun.com/gpu-mem 9, and namespace bounded-both",
		"mem 1 core 55": "container c asks for aliyun.com/gpu-core.percentage 55, and namespace bounded-both",
	} {
		p := pinned(podOf(boundedBoth, withCPUs("c", "8", amounts)))
		got, err := s.createBefore(func(*corev1.Pod) {}, p)
		expect.Error(t, err, refused)
		if got == nil || !strings.Contains(template(got), "-cpu8.") {
			t.Errorf("%s: the pod is %v", amounts, got)
		}
	}
	of := map[string]string{"aliyun.com/gpu-count": "2"}
	p := in(bounded, pinned(pod("p", of, withCPUs("c", "8", "mem 18"))))
	_, err := s.createBefore(func(*corev1.Pod) {}, p)
	expect.Error(t, err, "aliyun.com/gpu-mem 18 of 2 GPUs")
}

// MIG instances are given out by the scheduler, too, and a container that is given one has a claim.
func TestMIGInstancesAsResources(t *testing.T) {
	s := newServer(t)
	const profile = "nvidia.com/mig-1g.10gb"
	for name, c := range map[string]corev1.Container{
		"a limit": limited("c", profile+" 1"), "a request": requested("c", profile+" 1"),
		"with media": limited("c", profile+".me 1"),
	} {
		named := changed(pod("p", nil, c), func(p *corev1.Pod) { p.Spec.NodeName = "n1" })
		_, err := s.create(named)
		expect.Error(t, err, "the pod asks for "+profile)
		expect.Error(t, err, "names its node in spec.nodeName")
		if _, err := s.create(pod("p", nil, with(c, "NVIDIA_VISIBLE_DEVICES", "all"))); err != nil {
			t.Errorf("%s, with the variable: %v", name, err)
		}
	}
	none := limited("c", "")
	none.Resources.Limits[profile] = resource.MustParse("0")
	_, err := s.create(pod("p", nil, with(none, "NVIDIA_VISIBLE_DEVICES", "all")))
	expect.Error(t, err, "container c sets NVIDIA_VISIBLE_DEVICES and has no claim")
}
