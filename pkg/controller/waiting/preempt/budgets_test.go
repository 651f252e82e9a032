// SPDX-License-Identifier: Apache-2.0

package preempt

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/gpushare/dra-driver-gpushare/pkg/scheduling"
)

// To ask of each pod which budgets count it, again for each pod that waits, costs little more
// than to read the budgets once: their selectors are not read again for each pod.
func TestManyBudgets(t *testing.T) {
	cost := func(n int) float64 {
		s := newStage(t)
		var pods []*corev1.Pod
		for i := range n {
			s.budget(fmt.Sprint("app-", i), 1)
			pods = append(pods, podOf(fmt.Sprint("app-", i), 1))
		}
		return testing.AllocsPerRun(1, func() {
			b := scheduling.NewBudgets(s.disruptions)
			for range 3 {
				for i, pod := range pods {
					if of := b.Of(pod); len(of) != 1 || of[0] != i {
						t.Fatalf("the budgets of pod %d are %v", i, of)
					}
				}
			}
		})
	}
	if few, many := cost(100), cost(400); many > 8*few {
		t.Errorf("four times as many pods and budgets make %.0f allocations of %.0f", many, few)
	}
}
