// SPDX-License-Identifier: Apache-2.0

package admission

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
)

// sized replaces what the first container says of its resources, as a webhook does that wants other CPUs.
func sized(p *corev1.Pod) { p.Spec.Containers[0].Resources = limited("", "").Resources }

// withoutClaims is what becomes of a pod in a program that was built when pods had no claims.
func withoutClaims(p *corev1.Pod) {
	p.Spec.ResourceClaims = nil
	for _, list := range [][]corev1.Container{p.Spec.Containers, p.Spec.InitContainers} {
		for i := range list {
			list[i].Resources.Claims = nil
		}
	}
}

// A pod whose claims a webhook takes after it was converted would run without its GPU.
func TestClaimsThatAWebhookTakes(t *testing.T) {
	s := withCPUClass(t)
	one := podFor("mem 3")
	two := pod("p", nil, limited("c", "mem 3"), limited("d", "mem 4"))
	const lost = "has lost the claims that it was given for the GPUs it asks for"
	for name, test := range map[string]struct {
		pod     *corev1.Pod
		webhook func(*corev1.Pod)
		refused string
	}{
		"resources replaced":            {one, sized, "container c " + lost},
		"of one of two containers":      {two, sized, "container c " + lost},
		"a program that knows no claim": {two, withoutClaims, "container c " + lost},
		"of an init container": {withInit(one.DeepCopy(), limited("i", "mem 3")), func(p *corev1.Pod) {
			p.Spec.InitContainers[0].Resources.Claims = nil
		}, "container i " + lost},
		"a GPU, and CPUs": {pinned(pod("p", nil, withCPUs("c", "4", "gpu 1"))), sized, "container c " + lost},
		"nothing":         {two, func(*corev1.Pod) {}, ""},
		"other CPUs": {one, func(p *corev1.Pod) {
			p.Spec.Containers[0].Resources.Limits, p.Spec.Containers[0].Resources.Requests = nil, nil
		}, ""},
		"another claim": {one, func(p *corev1.Pod) {
			p.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "own", ResourceClaimName: ptr.To("own")}}
			p.Spec.Containers[0].Resources.Claims = []corev1.ResourceClaim{{Name: "own"}}
		}, ""},
		"a container less":         {two, func(p *corev1.Pod) { p.Spec.Containers = p.Spec.Containers[1:] }, ""},
		"a name":                   {one, func(p *corev1.Pod) { p.Spec.Containers[0].Name = "d" }, ""},
		"of one that asked not":    {pod("p", nil, limited("a", ""), limited("b", "mem 3")), sized, ""},
		"of CPUs alone":            {pinned(pod("p", nil, withCPUs("c", "4", ""))), sized, ""},
		"of a pod that asks not":   {podFor(""), sized, ""},
		"of one that names itself": {pod("p", map[string]string{v1alpha1.LabelLegacy: "true"}, limited("c", "")), sized, ""},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := s.createBefore(test.webhook, test.pod)
			expect.Error(t, err, test.refused)
			if err != nil && test.refused == "" {
				t.Errorf("its claims are %s", claimsOf(got))
			}
		})
	}
}

// So would one whose claim was made of nvidia.com/gpu.
func TestClaimsForGPUsThatAWebhookTakes(t *testing.T) {
	s := withClaimsForGPUs(t)
	one := podFor("nvidia.com/gpu 1")
	two := pod("p", nil, limited("c", "nvidia.com/gpu 2"), limited("d", "mem 3"))
	const lost = "has lost the claims that it was given for the GPUs it asks for"
	for name, test := range map[string]struct {
		pod     *corev1.Pod
		webhook func(*corev1.Pod)
		refused string
	}{
		"resources replaced":            {one, sized, "container c " + lost},
		"beside a share":                {two, sized, "container c " + lost},
		"a program that knows no claim": {two, withoutClaims, "container c " + lost},
		"of a share beside": {two, func(p *corev1.Pod) {
			p.Spec.Containers[1].Resources.Claims = nil
		}, "container d " + lost},
		"of an init container": {withInit(one.DeepCopy(), limited("i", "nvidia.com/gpu 1")), func(p *corev1.Pod) {
			p.Spec.InitContainers[0].Resources.Claims = nil
		}, "container i " + lost},
		"nothing": {two, func(*corev1.Pod) {}, ""},
		"a claim and a limit put back": {one, func(p *corev1.Pod) {
			withoutClaims(p)
			asksFor("nvidia.com/gpu 1")(p)
		}, ""},
		"of one that asked not": {pod("p", nil, limited("a", ""), limited("c", "nvidia.com/gpu 1")), sized, ""},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := s.createBefore(test.webhook, test.pod)
			expect.Error(t, err, test.refused)
		})
	}
}

// Who copies a pod may leave its claims out, and its labels and annotations in.
func TestCopiesOfConvertedPods(t *testing.T) {
	s := newServer(t)
	stored, err := s.create(withInit(pod("p", nil, limited("c", "mem 3"), limited("d", "mem 4")), limited("i", "mem 3")))
	expect.NoError(t, err)
	const record = v1alpha1.AnnotationLegacyRequest
	for name, test := range map[string]struct {
		change func(*corev1.Pod)
		// converted says that it still says what it was converted from.
		converted bool
	}{
		"as it is":              {func(*corev1.Pod) {}, true},
		"in another namespace":  {func(p *corev1.Pod) { p.Namespace = optedOut }, true},
		"without labels":        {func(p *corev1.Pod) { p.Labels = nil }, true},
		"without annotations":   {func(p *corev1.Pod) { p.Annotations = nil }, false},
		"without resources":     {sized, false},
		"without claims":        {withoutClaims, false},
		"another container":     {func(p *corev1.Pod) { p.Spec.Containers[0] = limited("debugger", "") }, true},
		"a claim less":          {func(p *corev1.Pod) { p.Spec.InitContainers[0].Resources.Claims = nil }, false},
		"that asks once more":   {func(p *corev1.Pod) { *p = *again(p); p.Labels = nil }, true},
		"and keeps its label":   {func(p *corev1.Pod) { *p = *again(p) }, true},
		"with another's record": {func(p *corev1.Pod) { p.Annotations[record] = `{"d":{},"gone":{}}` }, true},
	} {
		t.Run(name, func(t *testing.T) {
			copied := stored.DeepCopy()
			test.change(copied)
			got, err := s.create(copied)
			expect.NoError(t, err)
			if _, is := got.Annotations[record]; is != test.converted {
				t.Errorf("its annotations are %v", got.Annotations)
			}
			// A webhook that takes what the copy does not have any more takes nothing.
			if test.converted {
				return
			}
			if _, err := s.createBefore(withoutClaims, copied); err != nil {
				t.Errorf("before a webhook: %v", err)
			}
		})
	}
	_, err = s.createBefore(withoutClaims, stored)
	expect.Error(t, err, "container c has lost the claims")
}

// again is a copy of a converted pod that asks as that did, and has no claim.
func again(p *corev1.Pod) *corev1.Pod {
	p = p.DeepCopy()
	withoutClaims(p)
	for i, amounts := range []string{"mem 3", "mem 4"} {
		p.Spec.Containers[i].Resources = limited("", amounts).Resources
	}
	return p
}

// A copy without its claims and labels may be given other claims, and the label with them.
func TestCopiesThatAreGivenOtherClaims(t *testing.T) {
	const record, ofGPUs = v1alpha1.AnnotationLegacyRequest, v1alpha1.AnnotationNVIDIARequest
	cpus, gpus := withCPUClass(t), withClaimsForGPUs(t)
	// asks has the copy's containers ask for this.
	asks := func(amounts ...string) func(*corev1.Pod) {
		return func(p *corev1.Pod) {
			for i, what := range amounts {
				p.Spec.Containers[i].Resources = limited("", what).Resources
			}
		}
	}
	both := pod("p", nil, limited("c", "mem 3"), limited("d", "nvidia.com/gpu 1"))
	two := podFor("nvidia.com/gpu 2")
	const ofC, ofD = `{"c":{"aliyun.com/gpu-mem":"3"}}`, `{"d":"1"}`
	for name, test := range map[string]struct {
		server *server
		pod    *corev1.Pod
		change func(*corev1.Pod)
		// records are what the copy says that it was converted from.
		records map[string]string
	}{
		"CPUs":           {cpus, pinned(pod("p", nil, withCPUs("c", "4", "mem 3"))), func(*corev1.Pod) {}, nil},
		"nothing":        {gpus, both, func(*corev1.Pod) {}, nil},
		"whole GPUs":     {gpus, both, asks("", "nvidia.com/gpu 1"), map[string]string{ofGPUs: ofD}},
		"fewer of them":  {gpus, two, asks("nvidia.com/gpu 1"), map[string]string{ofGPUs: `{"c":"1"}`}},
		"none of them":   {gpus, two, func(*corev1.Pod) {}, nil},
		"a share":        {gpus, both, asks("mem 3", ""), map[string]string{record: ofC}},
		"both once more": {gpus, both, asks("mem 3", "nvidia.com/gpu 1"), map[string]string{record: ofC, ofGPUs: ofD}},
		"for virtual nodes, which give GPUs by the limit": {gpus, both, func(p *corev1.Pod) {
			asks("", "nvidia.com/gpu 1")(p)
			p.Annotations["alibabacloud.com/burst-resource"] = "eci"
		}, nil},
		"none, opted out": {gpus, both, func(p *corev1.Pod) {
			asks("", "nvidia.com/gpu 1")(p)
			p.Labels = map[string]string{v1alpha1.LabelLegacy: "false"}
		}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			stored, err := test.server.create(test.pod)
			expect.NoError(t, err)
			for what, labels := range map[string]map[string]string{"without labels": nil, "with its label": stored.Labels} {
				copied := changed(stored.DeepCopy(), withoutClaims)
				copied.Labels = labels
				test.change(copied)
				got, err := test.server.createBefore(func(*corev1.Pod) {}, copied)
				if err != nil {
					t.Errorf("%s: %v", what, err)
					continue
				}
				for _, key := range []string{record, ofGPUs} {
					if got.Annotations[key] != test.records[key] {
						t.Errorf("%s: %s is %q, want %q", what, key, got.Annotations[key], test.records[key])
					}
				}
			}
		})
	}
}
