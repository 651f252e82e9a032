// SPDX-License-Identifier: Apache-2.0

package admission

import (
	"context"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/warning"
	"k8s.io/utils/ptr"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
)

const burst = "alibabacloud.com/burst-resource"

var (
	tolerated = corev1.Toleration{Key: "virtual-kubelet.io/provider", Operator: corev1.TolerationOpExists,
		Effect: corev1.TaintEffectNoSchedule}
	virtual    = expression("type", corev1.NodeSelectorOpIn, "virtual-kubelet")
	ordinary   = expression("type", corev1.NodeSelectorOpNotIn, "virtual-kubelet")
	inZone     = expression("zone", corev1.NodeSelectorOpIn, "a")
	byName     = expression("metadata.name", corev1.NodeSelectorOpIn, "n1")
	preferable = corev1.PreferredSchedulingTerm{Weight: 100, Preference: term(ordinary)}
)

func expression(key string, op corev1.NodeSelectorOperator, values ...string) corev1.NodeSelectorRequirement {
	return corev1.NodeSelectorRequirement{Key: key, Operator: op, Values: values}
}

func term(expressions ...corev1.NodeSelectorRequirement) corev1.NodeSelectorTerm {
	return corev1.NodeSelectorTerm{MatchExpressions: expressions}
}

func requiring(terms ...corev1.NodeSelectorTerm) *corev1.NodeAffinity {
	return &corev1.NodeAffinity{
		RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{NodeSelectorTerms: terms}}
}

func preferring(terms ...corev1.PreferredSchedulingTerm) *corev1.NodeAffinity {
	return &corev1.NodeAffinity{PreferredDuringSchedulingIgnoredDuringExecution: terms}
}

func bursting(value string, containers ...corev1.Container) *corev1.Pod {
	p := pod("p", nil, containers...)
	p.Annotations = map[string]string{burst: value}
	return p
}

// placed is where a pod may run.
type placed struct {
	tolerations []corev1.Toleration
	affinity    *corev1.Affinity
}

// A pod may run on virtual nodes, or has to, as its annotation says, and wherever else it
// says itself.
func TestPodsForVirtualNodes(t *testing.T) {
	s := newServer(t)
	on := func(nodes *corev1.NodeAffinity, tolerations ...corev1.Toleration) placed {
		return placed{tolerations, &corev1.Affinity{NodeAffinity: nodes}}
	}
	spread := &corev1.PodAntiAffinity{PreferredDuringSchedulingIgnoredDuringExecution: []corev1.WeightedPodAffinityTerm{
		{Weight: 1, PodAffinityTerm: corev1.PodAffinityTerm{TopologyKey: corev1.LabelHostname}}}}
	ssd := corev1.PreferredSchedulingTerm{Weight: 1, Preference: term(expression("disk", corev1.NodeSelectorOpIn, "ssd"))}
	scaler := corev1.Toleration{Key: "scaler", Operator: corev1.TolerationOpExists}
	everything := corev1.Toleration{Operator: corev1.TolerationOpExists}
	inZoneAndPreferable := requiring(term(inZone))
	inZoneAndPreferable.PreferredDuringSchedulingIgnoredDuringExecution = []corev1.PreferredSchedulingTerm{preferable}
	with := func(p *corev1.Pod, before placed) *corev1.Pod {
		p.Spec.Tolerations, p.Spec.Affinity = before.tolerations, before.affinity
		return p
	}
	for name, test := range map[string]struct {
		pod  *corev1.Pod
		want placed
	}{
		"ordinary nodes first": {bursting("eci", limited("c", "")), on(preferring(preferable), tolerated)},
		"virtual nodes":        {bursting("eci_only", limited("c", "")), on(requiring(term(virtual)), tolerated)},
		"a GPU as virtual nodes have it": {bursting("eci", limited("c", "nvidia.com/gpu 1")),
			on(preferring(preferable), tolerated)},
		"beside other wishes": {with(bursting("eci", limited("c", "")),
			placed{[]corev1.Toleration{scaler}, &corev1.Affinity{NodeAffinity: preferring(ssd), PodAntiAffinity: spread}}),
			placed{[]corev1.Toleration{scaler, tolerated},
				&corev1.Affinity{NodeAffinity: preferring(ssd, preferable), PodAntiAffinity: spread}}},
		"beside other demands": {with(bursting("eci", limited("c", "")), on(requiring(term(inZone)))),
			on(inZoneAndPreferable, tolerated)},
		// Terms are alternatives, and one without anything in it selects nothing.
		"virtual nodes, and other demands": {
			with(bursting("eci_only", limited("c", "")), on(requiring(term(inZone), corev1.NodeSelectorTerm{},
				corev1.NodeSelectorTerm{MatchFields: []corev1.NodeSelectorRequirement{byName}}))),
			on(requiring(term(inZone, virtual), corev1.NodeSelectorTerm{},
				corev1.NodeSelectorTerm{MatchExpressions: []corev1.NodeSelectorRequirement{virtual},
					MatchFields: []corev1.NodeSelectorRequirement{byName}}), tolerated)},
		"what tolerates everything": {with(bursting("eci_only", limited("c", "")),
			placed{[]corev1.Toleration{everything}, nil}),
			on(requiring(term(virtual)), everything)},
		"a pod that says it itself": {with(bursting("eci_only", limited("c", "")), on(requiring(term(virtual)), tolerated)),
			on(requiring(term(virtual)), tolerated)},
		"no annotation":         {podFor(""), placed{}},
		"another annotation":    {bursting("ecs", limited("c", "")), placed{}},
		"a share":               {bursting("eci", limited("c", "mem 3")), placed{}},
		"an init share":         {withInit(bursting("eci", limited("c", "mem 3")), limited("i", "mem 3")), placed{}},
		"whole GPUs by a claim": {bursting("eci", limited("c", "gpu 2")), placed{}},
		"a claim": {changed(bursting("eci", limited("c", "")), func(p *corev1.Pod) {
			p.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "x", ResourceClaimName: ptr.To("x")}}
		}), placed{}},
		"the pod opted out": {optingOut(bursting("eci", limited("c", ""))), placed{}},
		"its namespace did": {in(optedOut, bursting("eci_only", limited("c", ""))), placed{}},
		"the system's pod":  {in(metav1.NamespaceSystem, bursting("eci_only", limited("c", ""))), placed{}},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := s.create(test.pod)
			expect.NoError(t, err)
			where := placed{got.Spec.Tolerations, got.Spec.Affinity}
			if diff := cmp.Diff(test.want, where, cmp.AllowUnexported(placed{})); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			for i, c := range got.Spec.Containers {
				const gpus = "nvidia.com/gpu"
				if want := test.pod.Spec.Containers[i].Resources.Limits[gpus]; want.Cmp(c.Resources.Limits[gpus]) != 0 {
					t.Errorf("it asks for %v, asked for %s of %s", c.Resources.Limits, want.String(), gpus)
				}
			}
			again, err := s.create(got)
			if diff := cmp.Diff(got, again); err != nil || diff != "" {
				t.Errorf("a second pass: %v (-first +second):\n%s", err, diff)
			}
		})
	}
}

// What no virtual node has is refused where the pod may run nowhere else, and warned of
// where it may.
func TestWhatVirtualNodesDoNotHave(t *testing.T) {
	s := newServer(t)
	claimed := func(p *corev1.Pod) {
		p.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "x", ResourceClaimName: ptr.To("x")}}
	}
	const noShares, noClaims = "which have no GPUs to share: ask for nvidia.com/gpu", "which prepare none"
	for name, test := range map[string]struct {
		pod           *corev1.Pod
		refused, warn string
	}{
		"a share":              {bursting("eci_only", limited("c", "mem 3")), noShares, ""},
		"a share with compute": {bursting("eci_only", limited("c", "mem 3 core 20")), noShares, ""},
		"linked GPUs":          {bursting("eci_only", limited("c", "gpu 2")), noShares, ""},
		"a claim":              {changed(bursting("eci_only", limited("c", "")), claimed), noClaims, ""},
		"a GPU":                {bursting("eci_only", limited("c", "nvidia.com/gpu 1")), "", ""},
		"a share, if need be":  {bursting("eci", limited("c", "mem 3")), "", "stays on ordinary nodes"},
		"a claim, if need be":  {changed(bursting("eci", limited("c", "")), claimed), "", "stays on ordinary nodes"},
		"a GPU, if need be":    {bursting("eci", limited("c", "nvidia.com/gpu 1")), "", ""},
		"nothing, if need be":  {bursting("eci", limited("c", "")), "", ""},
		"no such elasticity":   {bursting("ecs", limited("c", "")), "", "burst-resource: ecs means nothing: it can be eci"},
		"a long story": {bursting(strings.Repeat("x", 500), limited("c", "")), "",
			strings.Repeat("x", 40) + " means"},
		"nothing said":          {bursting("", limited("c", "")), "", "means nothing"},
		"another's annotations": {podFor("mem 3"), "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			var seen warnings
			_, err := s.createWarned(&seen, test.pod)
			expect.Error(t, err, test.refused)
			if got := strings.Join(seen.texts, "; "); test.refused == "" && ((got == "") != (test.warn == "") ||
				!strings.Contains(got, test.warn)) {
				t.Errorf("warnings %q, want %q", got, test.warn)
			}
		})
	}
}

// createWarned is create, with what its author is warned of.
func (s *server) createWarned(seen *warnings, p *corev1.Pod) (*corev1.Pod, error) {
	ctx := warning.WithWarningRecorder(context.Background(), seen)
	return admitted(ctx, s, somebody, p, nil)
}
