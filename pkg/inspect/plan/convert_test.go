// SPDX-License-Identifier: Apache-2.0

package plan_test

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/pkg/inspect/plan"
	"github.com/gpushare/dra-driver-gpushare/pkg/mode"
)

const asOnACK = "apiVersion: v1\nkind: Pod\nmetadata: {name: p, labels: {LABELS}}\nspec: {containers: [{name: c, " +
	"image: i, resources: {limits: {aliyun.com/gpu-mem: 8}}}]}\n"

// During a migration pods of namespaces with the label alone are converted. The others are for
// ACK's device plugins, which have what the node says.
func TestPodsOfNamespacesThatTheBindingDoesNotSelect(t *testing.T) {
	migration := &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{
		{Key: "gpu.aliyun.com/legacy", Operator: metav1.LabelSelectorOpNotIn, Values: []string{"false"}},
		{Key: "kubernetes.io/metadata.name", Operator: metav1.LabelSelectorOpNotIn, Values: []string{"kube-system"}},
		{Key: "gpu.aliyun.com/legacy", Operator: metav1.LabelSelectorOpIn, Values: []string{"true"}}}}
	installed := &metav1.LabelSelector{MatchExpressions: migration.MatchExpressions[:2]}
	for name, test := range map[string]struct {
		binding   *metav1.LabelSelector
		namespace map[string]string
		unread    bool
		pod       string
		ackNode   bool
		want      string
		say       string
	}{
		"as installed": {installed, nil, false, "", false, "p=n1:gpu-0-share", ""},
		"not known":    {nil, nil, false, "", false, "p=n1:gpu-0-share", ""},
		"labelled": {migration, map[string]string{"gpu.aliyun.com/legacy": "true"}, false, "", false,
			"p=n1:gpu-0-share", ""},
		"may not be read": {migration, nil, true, "", false, "p=n1:gpu-0-share", ""},
		"not labelled": {migration, nil, false, "", false, "p=-",
			"no node takes it, and it would not be converted: "},
		"ACK's node has it":                 {migration, nil, false, "", true, "p=old:", ""},
		"opted out, and nothing refuses it": {migration, nil, false, `gpu.aliyun.com/legacy: "false"`, true, "p=old:", ""},
		"opted out": {installed, nil, false, `gpu.aliyun.com/legacy: "false"`, true, "p=-",
			"it would be refused: it opted out by its label"},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSite(t)
			s.node("n1", 1, mode.Share)
			if test.ackNode {
				s.Nodes = append(s.Nodes, ackNode("old", nil, map[string]string{"aliyun.com/gpu-mem": "15", "pods": "9"}))
			}
			s.read(t, strings.Replace(asOnACK, "LABELS", test.pod, 1))
			s.Converts = test.binding
			s.KnownNamespaces = []*corev1.Namespace{{ObjectMeta: metav1.ObjectMeta{Name: "team", Labels: test.namespace}}}
			if test.unread {
				s.KnownNamespaces, s.Unread = nil, map[string]string{"Namespace/team": "you may not get it"}
			}
			made := s.plan(t)
			expect.Equal(t, []string{test.want}, verdicts(made), "verdicts of\n%s", printed(t, made))
			if test.say != "" {
				expect.Says(t, printed(t, made), test.say)
			}
			noted := strings.Contains(strings.Join(made.Notes, "\n"), "pod/p -n team: it would not be converted: ")
			expect.Equal(t, test.say != "" && test.binding == migration || test.want == "p=old:", noted, "noted in %q",
				made.Notes)
		})
	}
	s := newSite(t)
	s.Converts = &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "a", Operator: "odd"}}}
	_, err := plan.Of(t.Context(), s.Input)
	expect.Error(t, err, "gpushare-legacy-convert")
}
