// SPDX-License-Identifier: Apache-2.0

package preempt

import (
	"slices"
	"testing"

	"github.com/gpushare/dra-driver-gpushare/pkg/mode"
)

// A MIG instance is freed by who holds one: the least of them, and nobody who has a whole GPU.
func TestVictimsForAnInstance(t *testing.T) {
	s := newStage(t)
	s.node("n1", mode.MIG)
	s.runs("n1", podOf("whole", 0), "gpu")
	s.runs("n1", podOf("two", 2), "instance")
	s.runs("n1", podOf("one", 1), "instance")
	if node, victims, why := s.victims(wishes(podOf("p", 9), "instance")); node != "n1" ||
		!slices.Equal(victims, []string{"one"}) {
		t.Errorf("node %q, victims %q: %s; want those of n1: one", node, victims, why)
	}
	if _, victims, _ := s.victims(wishes(podOf("p", 1), "instance")); len(victims) > 0 {
		t.Errorf("%q go for a pod of equal priority", victims)
	}
}
