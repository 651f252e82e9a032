// SPDX-License-Identifier: Apache-2.0

package admission

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
)

const placementLabel = "gpu.aliyun.com/node-placement"

// placing is a server with the option pack-nodes, or with spread-nodes, which changes this
// one variable of its policy (deployments/kustomize_test.go).
func placing(t *testing.T, cluster string) *server {
	t.Helper()
	return shared("placing by "+cluster, func() *server {
		objects := decoded(t, "testdata/deployments/options/pack-nodes/policy.yaml")
		policy, ok := objects[0].(*admissionv1.MutatingAdmissionPolicy)
		if !ok || policy.Spec.Variables[0].Name != "cluster" || policy.Spec.Variables[0].Expression != "'binpack'" {
			t.Fatalf("the option does not begin with the setting of the cluster: %v", objects[0])
		}
		policy.Spec.Variables[0].Expression = "'" + cluster + "'"
		return newServerWith(t, objects)
	})
}

// towards is the preference for nodes with pods of these placements, or for those without.
func towards(placements ...string) corev1.WeightedPodAffinityTerm {
	return corev1.WeightedPodAffinityTerm{Weight: 100, PodAffinityTerm: corev1.PodAffinityTerm{
		TopologyKey: corev1.LabelHostname, NamespaceSelector: &metav1.LabelSelector{},
		LabelSelector: &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{
			{Key: placementLabel, Operator: metav1.LabelSelectorOpIn, Values: placements}}}}}
}

func attracted(terms ...corev1.WeightedPodAffinityTerm) *corev1.Affinity {
	return &corev1.Affinity{PodAffinity: &corev1.PodAffinity{PreferredDuringSchedulingIgnoredDuringExecution: terms}}
}

func repelled(terms ...corev1.WeightedPodAffinityTerm) *corev1.Affinity {
	return &corev1.Affinity{
		PodAntiAffinity: &corev1.PodAntiAffinity{PreferredDuringSchedulingIgnoredDuringExecution: terms}}
}

// labelled is a pod with the label of its placement, for which empty is none.
func labelled(placement string, containers ...corev1.Container) *corev1.Pod {
	p := pod("p", nil, containers...)
	if placement != "" {
		p.Labels = map[string]string{placementLabel: placement}
	}
	return p
}

func holdsClaim(p *corev1.Pod) {
	p.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "x", ResourceClaimTemplateName: ptr.To("mine")}}
}

// Pods that hold shares say which node they prefer, as their label or the cluster has it.
func TestNodePlacement(t *testing.T) {
	const memoryClass = "deviceclass.resource.kubernetes.io/memory.gpu.aliyun.com 1"
	packs, spreads := attracted(towards("binpack")), repelled(towards("binpack", "spread"))
	mine := corev1.WeightedPodAffinityTerm{Weight: 1, PodAffinityTerm: corev1.PodAffinityTerm{TopologyKey: "zone"}}
	mineByHand := towards("binpack")
	mineByHand.Weight = 7
	withAffinity := func(p *corev1.Pod, affinity *corev1.Affinity) *corev1.Pod {
		p.Spec.Affinity = affinity
		return p
	}
	beside := attracted(towards("binpack"))
	beside.NodeAffinity, beside.PodAntiAffinity = requiring(term(inZone)), repelled(mine).PodAntiAffinity
	binpack, spread := placing(t, "binpack"), placing(t, "spread")
	for name, test := range map[string]struct {
		cluster *server
		pod     *corev1.Pod
		label   string
		want    *corev1.Affinity
	}{
		"a share":      {binpack, labelled("", limited("c", "mem 3")), "binpack", packs},
		"with compute": {binpack, labelled("", limited("c", "mem 3 core 20")), "binpack", packs},
		"of several GPUs": {binpack, pod("p", map[string]string{"aliyun.com/gpu-count": "2"}, limited("c", "mem 4")),
			"binpack", packs},
		"a sidecar's": {binpack, withInit(labelled("", limited("c", "")), sidecar(limited("s", "mem 3"))),
			"binpack", packs},
		"by a request alone":      {binpack, labelled("", requested("c", memoryClass)), "binpack", packs},
		"by an extended resource": {binpack, labelled("", limited("c", memoryClass)), "binpack", packs},
		"of a model": {binpack,
			labelled("", limited("c", "deviceclass.resource.kubernetes.io/share.nvidia-a10.gpu.aliyun.com 1")), "binpack",
			packs},
		"where pods are spread": {spread, labelled("", limited("c", "mem 3")), "spread", spreads},
		"that spreads itself":   {binpack, labelled("spread", limited("c", "mem 3")), "spread", spreads},
		"that packs itself":     {spread, labelled("binpack", limited("c", "mem 3")), "binpack", packs},
		"with an empty label": {binpack, pod("p", map[string]string{placementLabel: ""}, limited("c", "mem 3")), "binpack",
			packs},
		"that wants neither":     {binpack, labelled("any", limited("c", "mem 3")), "any", nil},
		"with a bad label":       {binpack, labelled("pack", limited("c", "mem 3")), "pack", nil},
		"a claim with the label": {binpack, changed(labelled("spread", limited("c", "")), holdsClaim), "spread", spreads},
		"a claim without it":     {binpack, changed(labelled("", limited("c", "")), holdsClaim), "", nil},
		"beside other wishes": {binpack, withAffinity(labelled("", limited("c", "mem 3")), &corev1.Affinity{
			NodeAffinity: requiring(term(inZone)), PodAntiAffinity: repelled(mine).PodAntiAffinity}), "binpack", beside},
		"after other wishes": {binpack, withAffinity(labelled("", limited("c", "mem 3")), attracted(mine)), "binpack",
			attracted(mine, towards("binpack"))},
		"an empty affinity": {binpack, withAffinity(labelled("", limited("c", "mem 3")),
			&corev1.Affinity{PodAffinity: &corev1.PodAffinity{}}), "binpack", packs},
		"that says it by hand": {binpack, withAffinity(labelled("binpack", limited("c", "mem 3")), attracted(mineByHand)),
			"binpack", attracted(mineByHand)},
		"no GPU":                 {binpack, labelled("", limited("c", "")), "", nil},
		"no GPU, with the label": {binpack, labelled("binpack", limited("c", "")), "binpack", nil},
		"none of a share": {binpack,
			labelled("", limited("c", "deviceclass.resource.kubernetes.io/memory.gpu.aliyun.com 0")), "", nil},
		"a whole GPU": {binpack, labelled("", limited("c", "nvidia.com/gpu 1")), "", nil},
		"a whole GPU of a class": {binpack,
			labelled("", limited("c", "deviceclass.resource.kubernetes.io/exclusive.gpu.aliyun.com 1")), "", nil},
		"linked GPUs": {binpack, labelled("", limited("c", "gpu 2")), "", nil},
		"the system's": {binpack, changed(labelled("binpack", limited("c", "")), func(p *corev1.Pod) {
			holdsClaim(p)
			p.Namespace = metav1.NamespaceSystem
		}), "binpack", nil},
		"the pod opted out": {binpack, changed(labelled("binpack", limited("c", "")), func(p *corev1.Pod) {
			holdsClaim(p)
			p.Labels[v1alpha1.LabelLegacy] = "false"
		}), "binpack", nil},
		"its namespace did": {binpack, changed(labelled("binpack", limited("c", "")), func(p *corev1.Pod) {
			holdsClaim(p)
			p.Namespace = optedOut
		}), "binpack", nil},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := test.cluster.create(test.pod)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(test.want, got.Spec.Affinity); diff != "" {
				t.Errorf("its affinity (-want +got):\n%s", diff)
			}
			if got.Labels[placementLabel] != test.label {
				t.Errorf("its label is %q, want %q", got.Labels[placementLabel], test.label)
			}
			again, err := test.cluster.create(got)
			if diff := cmp.Diff(got, again); err != nil || diff != "" {
				t.Errorf("a second pass: %v (-first +second):\n%s", err, diff)
			}
		})
	}
}

// The scheduler spreads replicas by itself, which pods that pack do without, unless they say
// how they want to be spread.
func TestPackedReplicasAreNotSpread(t *testing.T) {
	s := placing(t, "binpack")
	overZones := corev1.TopologySpreadConstraint{MaxSkew: 1, TopologyKey: "zone", WhenUnsatisfiable: corev1.ScheduleAnyway,
		LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "a"}}}
	none := corev1.TopologySpreadConstraint{MaxSkew: 1, TopologyKey: corev1.LabelHostname,
		WhenUnsatisfiable: corev1.ScheduleAnyway, LabelSelector: &metav1.LabelSelector{
			MatchExpressions: []metav1.LabelSelectorRequirement{
				{Key: placementLabel, Operator: metav1.LabelSelectorOpExists},
				{Key: placementLabel, Operator: metav1.LabelSelectorOpDoesNotExist}}}}
	for name, test := range map[string]struct {
		placement string
		says      []corev1.TopologySpreadConstraint
		want      []corev1.TopologySpreadConstraint
	}{
		"a pod that packs": {"binpack", nil, []corev1.TopologySpreadConstraint{none}},
		"one that says how": {"binpack", []corev1.TopologySpreadConstraint{overZones},
			[]corev1.TopologySpreadConstraint{overZones}},
		"a pod that spreads":       {"spread", nil, nil},
		"a pod that wants neither": {"any", nil, nil},
	} {
		t.Run(name, func(t *testing.T) {
			p := labelled(test.placement, limited("c", "mem 3"))
			p.Spec.TopologySpreadConstraints = test.says
			got, err := s.create(p)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(test.want, got.Spec.TopologySpreadConstraints); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// Without the option nothing of it is there.
func TestNoNodePlacementByDefault(t *testing.T) {
	got, err := newServer(t).create(labelled("binpack", limited("c", "mem 3")))
	if err != nil || got.Spec.Affinity != nil || got.Spec.TopologySpreadConstraints != nil {
		t.Errorf("error %v, affinity %v, constraints %v", err, got.Spec.Affinity, got.Spec.TopologySpreadConstraints)
	}
}

// A label that says nothing is warned of.
func TestAdviceOnNodePlacement(t *testing.T) {
	s := placing(t, "binpack")
	for placement, want := range map[string]string{
		"pack": "label gpu.aliyun.com/node-placement: pack means nothing, and leaves the pod to the scheduler",
		"":     "", "binpack": "", "spread": "", "any": "",
	} {
		var seen warnings
		if _, err := s.createWarned(&seen, labelled(placement, limited("c", "mem 3"))); err != nil {
			t.Fatal(err)
		}
		if got := strings.Join(seen.texts, "; "); (got == "") != (want == "") || !strings.Contains(got, want) {
			t.Errorf("%q: warnings %q, want %q", placement, got, want)
		}
	}
}
