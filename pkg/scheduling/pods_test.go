// SPDX-License-Identifier: Apache-2.0

package scheduling_test

import (
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/pkg/scheduling"
)

// A pin keeps all that the pod asked for.
func TestPinnedTo(t *testing.T) {
	only := corev1.NodeSelectorRequirement{Key: "metadata.name", Operator: corev1.NodeSelectorOpIn, Values: []string{"n"}}
	other := corev1.NodeSelectorRequirement{Key: "zone", Operator: corev1.NodeSelectorOpExists}
	anti := &corev1.PodAntiAffinity{}
	terms := func(of ...corev1.NodeSelectorTerm) *corev1.Affinity {
		return &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{
			RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{NodeSelectorTerms: of}}}
	}
	fields := func(of ...corev1.NodeSelectorRequirement) corev1.NodeSelectorTerm {
		return corev1.NodeSelectorTerm{MatchFields: of}
	}
	asks := corev1.NodeSelectorTerm{MatchExpressions: []corev1.NodeSelectorRequirement{other}}
	both := corev1.NodeSelectorTerm{MatchExpressions: asks.MatchExpressions, MatchFields: fields(only).MatchFields}
	against := terms(fields(only))
	against.PodAntiAffinity = anti
	for name, test := range map[string]struct{ before, want *corev1.Affinity }{
		"anywhere":         {nil, terms(fields(only))},
		"of pods":          {&corev1.Affinity{PodAntiAffinity: anti}, against},
		"a label":          {terms(asks), terms(both)},
		"either of two":    {terms(asks, fields(other)), terms(both, fields(other, only))},
		"one that is none": {terms(asks, corev1.NodeSelectorTerm{}), terms(both, corev1.NodeSelectorTerm{})},
	} {
		t.Run(name, func(t *testing.T) {
			before := test.before.DeepCopy()
			expect.Equal(t, test.want, scheduling.PinnedTo("n", test.before), "the affinity")
			expect.Equal(t, before, test.before, "what was given")
		})
	}
}
