// SPDX-License-Identifier: Apache-2.0

package defragment_test

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpushare/dra-driver-gpushare/pkg/inspect/defragment"
	"github.com/gpushare/dra-driver-gpushare/pkg/scheduling/moves"
	"github.com/gpushare/dra-driver-gpushare/pkg/text"
)

func pod(name string) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "team-a", Name: name}}
}

func TestPrint(t *testing.T) {
	for name, tc := range map[string]struct {
		plan moves.Plan
		want string
	}{
		"moves": {moves.Plan{Moves: []moves.Move{{Pod: pod("infer-1"), From: "n1", To: "n2"}}, GPUs: 1, Saved: 0.44,
			Waiting: []*corev1.Pod{pod("train")}}, `NAMESPACE  POD      FROM  TO
team-a     infer-1  n1    n2

Gain: free GPUs +1, free nodes +0, fragmented GPUs -0.4
Then find room: team-a/train
`},
		"none": {moves.Plan{Why: "the pod has room without any move"}, "No moves: the pod has room without any move.\n"},
	} {
		t.Run(name, func(t *testing.T) {
			var out strings.Builder
			if err := defragment.Of(&tc.plan, nil).Print(&out); err != nil || out.String() != tc.want {
				t.Errorf("error %v; printed\n%swant\n%s", err, out.String(), tc.want)
			}
		})
	}
}

func TestJSON(t *testing.T) {
	var out strings.Builder
	err := text.JSON(&out, defragment.Of(&moves.Plan{Why: "no pod may move"}, []string{"a note"}))
	for _, want := range []string{`"moves": []`, `"freeGPUs": 0`, `"why": "no pod may move"`, `"a note"`} {
		if err != nil || !strings.Contains(out.String(), want) {
			t.Errorf("error %v; %s lacks %s", err, out.String(), want)
		}
	}
}
