// SPDX-License-Identifier: Apache-2.0

package admission

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/ack"
)

// gangOf is how a pod names a gang by labels.
func gangOf(name, least string) map[string]string {
	return map[string]string{ack.LabelPodGroup: name, ack.LabelMinAvailable: least}
}

func TestPodsOfGangs(t *testing.T) {
	s := newServer(t)
	koordinator := func(name, least string) func(*corev1.Pod) {
		return func(p *corev1.Pod) {
			p.Annotations = map[string]string{ack.AnnotationGang: name, ack.AnnotationGangMin: least}
		}
	}
	other := "other"
	for name, test := range map[string]struct {
		labels map[string]string
		change func(*corev1.Pod)
		want   string // the PodGroup; empty for none
	}{
		"of the document":         {labels: gangOf("tf-smoke-gpu", "2"), want: "tf-smoke-gpu"},
		"for ACK's scheduler":     {gangOf("a", "2"), func(p *corev1.Pod) { p.Spec.SchedulerName = "ack-co-scheduler" }, "a"},
		"with Koordinator's":      {nil, koordinator("k", "3"), "k"},
		"with both":               {gangOf("a", "2"), koordinator("k", "3"), "a"},
		"dots":                    {labels: gangOf("v1.2.job", "10"), want: "v1.2.job"},
		"no gang":                 {},
		"no number":               {labels: map[string]string{ack.LabelPodGroup: "a"}},
		"nothing at least":        {labels: gangOf("a", "0")},
		"not a number":            {labels: gangOf("a", "2.5")},
		"a number beyond all":     {labels: gangOf("a", "100000")},
		"no name of an object":    {labels: gangOf("A_b", "2")},
		"dots in a row":           {labels: gangOf("a..b", "2")},
		"a name that is too long": {nil, koordinator(strings.Repeat("x", 64), "2"), ""},
		"for another scheduler":   {gangOf("a", "2"), func(p *corev1.Pod) { p.Spec.SchedulerName = "volcano" }, ""},
		"on a node already":       {gangOf("a", "2"), func(p *corev1.Pod) { p.Spec.NodeName = "n1" }, ""},
		"in a group of somebody's": {gangOf("a", "2"), func(p *corev1.Pod) {
			p.Spec.SchedulingGroup = &corev1.PodSchedulingGroup{PodGroupName: &other}
		}, other},
		"opted out":              {gangOf("a", "2"), func(p *corev1.Pod) { p.Labels["gpu.aliyun.com/legacy"] = "false" }, ""},
		"in a namespace without": {gangOf("a", "2"), func(p *corev1.Pod) { p.Namespace = optedOut }, ""},
	} {
		t.Run(name, func(t *testing.T) {
			asked := pod("p", test.labels, limited("c", ""))
			if test.labels == nil {
				asked.Labels = nil
			}
			if test.change != nil {
				test.change(asked)
			}
			if asked.Spec.SchedulerName == "" {
				asked.Spec.SchedulerName = corev1.DefaultSchedulerName
			}
			got, err := s.create(asked)
			expect.NoError(t, err)
			group := ""
			if got.Spec.SchedulingGroup != nil {
				group = *got.Spec.SchedulingGroup.PodGroupName
			}
			if group != test.want {
				t.Errorf("it is in the PodGroup %q, want %q", group, test.want)
			}
			if _, told := got.Annotations["gpu.aliyun.com/gang"]; group != "" && group != other && !told {
				t.Error("nothing says that the policy looked at it")
			}
			if group != "" && group != other && got.Labels[ack.LabelPodGroup] != group {
				t.Errorf("the controller does not find it by the labels %v", got.Labels)
			}
		})
	}
}
