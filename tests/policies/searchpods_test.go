// SPDX-License-Identifier: Apache-2.0

package admission

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/utils/ptr"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/pkg/legacy"
)

// claimsPod is a pod with these claims, by template, or by name where it begins with "named-".
func claimsPod(name string, claims ...string) *corev1.Pod {
	p := pod(name, nil, limited("c", ""))
	for i, c := range claims {
		entry := corev1.PodResourceClaim{Name: fmt.Sprintf("c%d", i)}
		if strings.HasPrefix(c, "named-") {
			entry.ResourceClaimName = &c
		} else {
			entry.ResourceClaimTemplateName = &c
		}
		p.Spec.ResourceClaims = append(p.Spec.ResourceClaims, entry)
	}
	return p
}

// withGPUs has a container of the pod ask for an extended resource.
func withGPUs(p *corev1.Pod, name corev1.ResourceName, amounts ...string) *corev1.Pod {
	for i, amount := range amounts {
		list := corev1.ResourceList{name: resource.MustParse(amount)}
		p.Spec.Containers = append(p.Spec.Containers, corev1.Container{Name: fmt.Sprintf("g%s%d",
			strings.ToLower(string(name[:2])), i),
			Resources: corev1.ResourceRequirements{Limits: list, Requests: list}})
	}
	return p
}

func claimTemplate(name string, claim resourceapi.DeviceClaim) *resourceapi.ResourceClaimTemplate {
	return &resourceapi.ResourceClaimTemplate{ObjectMeta: metav1.ObjectMeta{Namespace: team, Name: name},
		Spec: resourceapi.ResourceClaimTemplateSpec{Spec: resourceapi.ResourceClaimSpec{Devices: claim}}}
}

// allOf asks for all devices of each of a request's alternatives.
func allOf(r resourceapi.DeviceRequest) resourceapi.DeviceRequest {
	for i := range r.FirstAvailable {
		r.FirstAvailable[i].AllocationMode = resourceapi.DeviceAllocationModeAll
	}
	return r
}

// A pod with several claims is refused if its templates are there, and its claims if it is.
func TestClaimsOfOnePod(t *testing.T) {
	specs := map[string]resourceapi.DeviceClaim{
		"one":       claimFor(of(1, "share", memory("1Gi"))),
		"two":       claimFor(of(2, "share", memory("2Gi"))),
		"unlike":    claimFor(of(1, "share", memory("1Gi")), of(1, "exclusive")),
		"rising":    claimFor(of(1, "share", memory("1Gi")), of(1, "share", memory("2Gi"))),
		"four":      claimFor(of(4, "share", memory("2Gi"))),
		"eight":     claimFor(of(1, "exclusive", count(8))),
		"whole":     claimFor(of(1, "exclusive", all())),
		"sixteen":   together(claimFor(of(16, "share", memory("1Gi")))),
		"linked":    claimFor(linkedOrSingle(2)),
		"four-tied": together(claimFor(of(4, "share", memory("1Gi")))),
		"nics":      claimFor(of(8, "nic.example.com")),
		"own":       claimFor(of(1, "any.example.com")),
		"either":    claimFor([]resourceapi.DeviceRequest{allOf(firstOf("a", "share", "exclusive"))}),
		"own-eight": claimFor(of(2, "any.example.com")),
		"named-one": claimFor(of(1, "share")), "named-four": claimFor(of(4, "share")),
	}
	type pods struct {
		claims  []string
		gpus    []string // of containers beside
		refused bool
	}
	cases := map[string]pods{
		"one claim for anything":             {claims: []string{"four"}},
		"two, for a share each":              {claims: []string{"one", "one"}},
		"two, for two shares each":           {claims: []string{"two", "two"}},
		"two, for 16 shares of one GPU each": {claims: []string{"sixteen", "sixteen"}},
		"two linked sets, or as many":        {claims: []string{"linked", "linked"}},
		"GPUs beside other devices":          {claims: []string{"two", "nics"}},
		"all GPUs beside other devices":      {claims: []string{"nics", "nics", "nics", "nics", "nics", "whole"}},
		"other devices alone":                {claims: []string{"nics", "nics", "nics", "nics", "nics", "nics", "nics"}},
		"three, for a share each":            {claims: []string{"one", "four-tied", "named-one"}},
		"five of one template":               {claims: []string{"one", "one", "one", "one", "one"}},
		"six of one template":                {claims: []string{"one", "one", "one", "one", "one", "one"}, refused: true},
		"two, for all GPUs in either way":    {claims: []string{"either", "either"}},
		"six, for all GPUs in either way": {claims: []string{"either", "either", "either", "either", "either", "either"},
			refused: true},
		"four, of several":                     {claims: []string{"one", "one", "one", "four-tied"}, refused: true},
		"two, for four shares":                 {claims: []string{"one", "four"}, refused: true},
		"two, for eight GPUs":                  {claims: []string{"eight", "eight"}, refused: true},
		"two, for unlike devices":              {claims: []string{"unlike", "one"}, refused: true},
		"two, the smaller first":               {claims: []string{"one", "rising"}, refused: true},
		"three, for 16 shares of one GPU":      {claims: []string{"sixteen", "sixteen", "one"}, refused: true},
		"a claim by name":                      {claims: []string{"named-four", "nics"}, refused: true},
		"an administrator's class":             {claims: []string{"own", "own-eight"}, refused: true},
		"a claim and GPUs of containers":       {claims: []string{"two"}, gpus: []string{"1"}},
		"a claim and many GPUs of containers":  {claims: []string{"two"}, gpus: []string{"8"}, refused: true},
		"two claims and a GPU of a container":  {claims: []string{"two", "one"}, gpus: []string{"1"}, refused: true},
		"two of one template, and GPUs":        {claims: []string{"sixteen", "sixteen"}, gpus: []string{"8"}, refused: true},
		"other devices and GPUs of containers": {claims: []string{"nics"}, gpus: []string{"8"}},
	}
	podOf := func(name string, claims, gpus []string) *corev1.Pod {
		return withGPUs(claimsPod(strings.NewReplacer(" ", "-", ",", "").Replace(strings.ToLower(name)), claims...),
			"nvidia.com/gpu", gpus...)
	}
	var templates, admitted []runtime.Object
	for name, spec := range specs {
		if strings.HasPrefix(name, "named-") {
			templates = append(templates, &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: team,
				Name: name},
				Spec: resourceapi.ResourceClaimSpec{Devices: spec}})
			continue
		}
		tmpl := claimTemplate(name, spec)
		if strings.HasPrefix(name, "own") {
			tmpl.Labels = map[string]string{"gpu.aliyun.com/own-class": "true"}
		}
		templates = append(templates, tmpl)
	}
	for name, tc := range cases {
		p, err := costly(t).create(podOf(name, tc.claims, tc.gpus))
		if err != nil {
			t.Fatalf("%s, while its claims are not there: %v", name, err)
		}
		p.UID = types.UID("uid-of-" + p.Name)
		admitted = append(admitted, p)
	}
	withClaims, withPods := newServerWith(t, templates), newServerWith(t, admitted)
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			p := podOf(name, tc.claims, tc.gpus)
			_, err := withClaims.create(p)
			expect.Error(t, err, ifRefused(tc.refused, "costly-claims=allowed"))
			var refusals int
			for i, c := range tc.claims {
				claim := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: team, Name: c},
					Spec: resourceapi.ResourceClaimSpec{Devices: specs[c]}}
				if !strings.HasPrefix(c, "named-") {
					claim.Name = fmt.Sprintf("%s-c%d-x", p.Name, i)
					claim.Annotations = map[string]string{resourceapi.PodResourceClaimAnnotation: fmt.Sprintf("c%d",
						i)}
					claim.OwnerReferences = []metav1.OwnerReference{{Kind: "Pod", Name: p.Name,
						UID: types.UID("uid-of-" + p.Name)}}
				}
				if strings.HasPrefix(c, "own") {
					claim.Labels = map[string]string{"gpu.aliyun.com/own-class": "true"}
				}
				if err := withPods.validate(somebody, claim, nil); err != nil {
					refusals++
				}
			}
			if tc.refused != (refusals > 0) {
				t.Errorf("with the pod there: %d of its claims refused, want any: %v", refusals, tc.refused)
			}
		})
	}
}

// What containers ask for by extended resources counts like requests.
func TestGPUsOfContainers(t *testing.T) {
	s := shared("extended", func() *server {
		own := ownClass("team", `device.driver == "gpu.aliyun.com"`)
		own.Spec.ExtendedResourceName = ptr.To("example.com/gpu")
		nic := ownClass("nic.example.com", `device.driver == "nic.example.com"`)
		nic.Spec.ExtendedResourceName = ptr.To("example.com/nic")
		return newServerWith(t, []runtime.Object{own, nic})
	})
	const byClass = "deviceclass.resource.kubernetes.io/"
	for name, tc := range map[string]struct {
		resource corev1.ResourceName
		amounts  []string
		more     corev1.ResourceName
		refused  bool
	}{
		"eight GPUs":                   {resource: "nvidia.com/gpu", amounts: []string{"8"}},
		"four containers with two":     {resource: "nvidia.com/gpu", amounts: []string{"2", "2", "2", "2"}},
		"four containers with a share": {resource: byClass + "share.gpu.aliyun.com", amounts: []string{"1", "1", "1", "1"}},
		"five containers":              {resource: "nvidia.com/gpu", amounts: []string{"1", "1", "1", "1", "1"}},
		"seven containers":             {resource: "nvidia.com/gpu", amounts: []string{"1", "1", "1", "1", "1", "1", "1"}},
		"seven containers with a share": {resource: byClass + "share.gpu.aliyun.com", amounts: []string{"1", "1", "1",
			"1", "1", "1", "1"}, refused: true},
		"eight containers": {resource: "nvidia.com/gpu", amounts: []string{"1", "1", "1", "1", "1",
			"1", "1", "1"}, refused: true},
		"sixteen GPUs": {resource: "nvidia.com/gpu", amounts: []string{"16"}, refused: true},
		"shares and a whole GPU": {resource: byClass + "share.gpu.aliyun.com", amounts: []string{"1", "1"},
			more: "nvidia.com/gpu"},
		"four shares and a whole GPU": {resource: byClass + "share.gpu.aliyun.com", amounts: []string{"1", "1",
			"1", "1"}, more: "nvidia.com/gpu", refused: true},
		"MIG instances":       {resource: "nvidia.com/mig-1g.10gb", amounts: []string{"4"}},
		"seven MIG instances": {resource: "nvidia.com/mig-1g.10gb", amounts: []string{"7"}, refused: true},
		"an administrator's":  {resource: "example.com/gpu", amounts: []string{"1", "1"}},
		"an administrator's, many": {resource: "example.com/gpu", amounts: []string{"1", "1", "1", "1"},
			refused: true},
		"an administrator's by its class": {resource: byClass + "team", amounts: []string{"2", "2"}, refused: true},
		"another driver's":                {resource: "example.com/nic", amounts: []string{"8", "8", "8", "8", "8", "8"}},
		"another driver's by its class":   {resource: byClass + "nic.example.com", amounts: []string{"8", "8", "8", "8"}},
		"shares before another driver's": {resource: byClass + "share.gpu.aliyun.com", amounts: []string{"1", "1",
			"1", "1"}, more: "example.com/nic", refused: true},
		"two shares before another's": {resource: byClass + "share.gpu.aliyun.com", amounts: []string{"1", "1"},
			more: "example.com/nic"},
		"a device plugin's": {resource: "example.com/fpga", amounts: []string{"8", "8", "8", "8", "8", "8", "8"}},
	} {
		t.Run(name, func(t *testing.T) {
			p := withGPUs(podFor(""), tc.resource, tc.amounts...)
			if tc.more != "" {
				p = withGPUs(p, tc.more, "1")
			}
			_, err := s.create(p)
			expect.Error(t, err, ifRefused(tc.refused, "costly-claims=allowed"))
		})
	}
}

// What pods ask for in ACK's manner, the driver's own templates among it, is as many containers and GPUs as before.
func TestTemplatesOfLegacyPodsAreSearchedQuickly(t *testing.T) {
	s := newServer(t)
	names := []string{"gpushare.mem-x8-whole.main.64"}
	for containers := 1; containers <= 16; containers++ {
		var memory, cores string
		for i := range containers {
			memory, cores = fmt.Sprintf("%s.c%d.2", memory, i), fmt.Sprintf("%s.c%d.2-5", cores, i)
		}
		names = append(names, "gpushare.mem"+memory, "gpushare.core"+cores)
		if containers <= 9 { // each is looked for near CPUs, and then anywhere
			names = append(names, "gpushare.mem-cpu4"+memory)
		}
	}
	for gpus := 1; gpus <= 16; gpus++ {
		names = append(names, fmt.Sprintf("gpushare.gpu.main.%d", gpus))
		if gpus <= 13 {
			names = append(names, fmt.Sprintf("gpushare.nvidia.main.%d", gpus))
		}
		if gpus > 1 && gpus <= 13 {
			names = append(names, fmt.Sprintf("gpushare.mem-x%d.main.%d", gpus, gpus))
		}
		if gpus > 1 && gpus <= 4 {
			names = append(names, fmt.Sprintf("gpushare.mem-x%d.a.%d.b.%[1]d", gpus, gpus),
				fmt.Sprintf("gpushare.core-x%d.a.%d-%d.b.%[2]d-%[3]d", gpus, gpus, 5*gpus))
		}
	}
	for _, each := range [][]int{{1, 1}, {2, 2}, {4, 4}, {8, 8}, {1, 2}, {4, 2, 2}, {2, 2, 2, 2}, {1, 1, 1, 1, 1},
		{1, 1, 1, 1, 1, 1, 1, 1}, {5, 5, 5}} {
		gpus, nvidia := "gpushare.gpu", "gpushare.nvidia"
		for i, n := range each {
			gpus, nvidia = fmt.Sprintf("%s.c%d.%d", gpus, i, n), fmt.Sprintf("%s.c%d.%d", nvidia, i, n)
		}
		names = append(names, gpus, nvidia)
	}
	for _, name := range names {
		request, err := legacy.ParseName(name)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if err := s.createClaim(team, request.Template(team).Spec.Spec.Devices); err != nil {
			t.Errorf("%s: %.250v", name, err)
		}
	}
}

// What no node has, or takes long to look for, is refused in words; where costly claims are allowed, it is converted.
func TestLegacyPodsThatAreSearchedForLong(t *testing.T) {
	s := costly(t)
	for name, p := range map[string]*corev1.Pod{
		"seventeen GPUs": podFor("gpu 17"),
		"four containers with three": pod("p", nil, limited("a", "gpu 3"), limited("b", "gpu 3"), limited("c",
			"gpu 3"), limited("d", "gpu 3")),
		"shares of five GPUs in two containers": pod("p", map[string]string{"aliyun.com/gpu-count": "5"}, limited("a",
			"mem 5"), limited("b", "mem 5")),
		"shares of fourteen GPUs": pod("p", map[string]string{"aliyun.com/gpu-count": "14"}, limited("c", "mem 14")),
	} {
		t.Run(name, func(t *testing.T) {
			_, err := s.create(p)
			expect.Error(t, err, "costly-claims=allowed")
			p.Namespace = "trusted"
			got, err := s.create(p)
			if err != nil || len(got.Spec.ResourceClaims) != 1 {
				t.Errorf("where costly claims are allowed: %v, %v", got, err)
			}
		})
	}
}

// A copy of a class of ours is known as an administrator's.
func TestCopiesOfClassesAreAnAdministrators(t *testing.T) {
	s := newServer(t)
	for name, kept := range map[string]bool{"gpu.aliyun.com": true, "share.nvidia-a10.gpu.aliyun.com": true,
		"team-share": false, "gpu.example.com": false} {
		class := ownClass(name, "true")
		class.Labels = map[string]string{"app.kubernetes.io/name": "dra-driver-gpushare"}
		class.TypeMeta = metav1.TypeMeta{APIVersion: "resource.k8s.io/v1", Kind: "DeviceClass"}
		expect.NoError(t, s.Admit(t.Context(), attributesOf(&user.DefaultInfo{Name: "admin"}, class, nil, "")))
		if _, has := class.Labels["app.kubernetes.io/name"]; has != kept {
			t.Errorf("%s: labels %v", name, class.Labels)
		}
	}
}

// A limit in the manner of ACK, which becomes a claim after the pod was looked at, counts as one.
func TestClaimsBesideALimitOfACK(t *testing.T) {
	s := shared("a claim for eight", func() *server {
		return newServerWith(t, []runtime.Object{claimTemplate("eight", claimFor(of(1, "exclusive", count(8)))),
			claimTemplate("one", claimFor(of(1, "share")))})
	})
	for claim, refused := range map[string]bool{"eight": true, "one": false} {
		p := claimsPod("p", claim)
		p.Spec.Containers = append(p.Spec.Containers, requested("legacy", "mem 1"))
		p.Spec.Containers[1].Resources.Limits = p.Spec.Containers[1].Resources.Requests
		got, err := s.create(p)
		if refused != (err != nil) || err == nil && got.Labels["gpu.aliyun.com/claims"] != "2" {
			t.Errorf("claim %s: %v, %v", claim, got, err)
		}
	}
}

// A policy has one kind of parameter, so what a claim may ask for beside others stands three times: for a claim, for a
// template and for a claim that a pod names.
func TestPoliciesOfSeveralClaimsAgree(t *testing.T) {
	type rule struct {
		Variables  map[string]string
		Validation string
	}
	rules := map[string]rule{}
	for _, object := range decoded(t, "testdata/deployments/manifests/policy-several-claims.yaml") {
		policy, is := object.(*admissionv1.ValidatingAdmissionPolicy)
		if !is || policy.Name == "gpushare-several-claims-cpus" {
			continue
		}
		r := rule{map[string]string{}, policy.Spec.Validations[0].Expression}
		for _, v := range policy.Spec.Variables {
			// The others say where the pod, its number and the claim are.
			if slices.Contains([]string{"rows", "free", "picks", "looks", "alike"}, v.Name) {
				r.Variables[v.Name] = v.Expression
			}
		}
		rules[strings.TrimPrefix(policy.Name, "gpushare-several-claims-")] = r
	}
	want := rules["claim"]
	if len(rules) != 3 || len(want.Variables) != 5 {
		t.Fatalf("policies %v", rules)
	}
	for name, got := range rules {
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("claim (-) and %s (+):\n%s", name, diff)
		}
	}
}
