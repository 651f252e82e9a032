// SPDX-License-Identifier: Apache-2.0

package scheduling_test

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

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

// Charts and LimitRanges write an amount of 0 where no GPU is meant.
func TestAsksForDevices(t *testing.T) {
	claims := corev1.PodSpec{ResourceClaims: []corev1.PodResourceClaim{{Name: "gpu"}}}
	for name, test := range map[string]struct {
		spec     corev1.PodSpec
		resource corev1.ResourceName
		amount   string
		want     bool
	}{
		"nothing":        {corev1.PodSpec{}, "cpu", "1", false},
		"a GPU":          {corev1.PodSpec{}, "nvidia.com/gpu", "1", true},
		"0 GPUs":         {corev1.PodSpec{}, "nvidia.com/gpu", "0", false},
		"by a claim":     {claims, "cpu", "1", true},
		"once converted": {claims, "aliyun.com/gpu-mem", "0", true},
	} {
		t.Run(name, func(t *testing.T) {
			requests := corev1.ResourceList{test.resource: resource.MustParse(test.amount)}
			if got := scheduling.AsksForDevices(&corev1.Pod{Spec: test.spec}, requests); got != test.want {
				t.Errorf("it asks: %t, want %t", got, test.want)
			}
		})
	}
}
