// SPDX-License-Identifier: Apache-2.0

package preempt

import (
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
	s.plans(wishes(podOf("p", 9), "instance"), "n1 one")
	// None goes for a pod of equal priority.
	s.plans(wishes(podOf("p", 1), "instance"), "")
}
