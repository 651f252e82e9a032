// SPDX-License-Identifier: Apache-2.0

package preempt

import (
	"testing"
	"time"

	"github.com/gpushare/dra-driver-gpushare/pkg/mode"
)

// Nobody goes for an administrator's access, which takes nothing from anybody: linked sets keep it off where they are
// counted, until they are released. And who only has such access frees no GPU.
func TestAdminAccess(t *testing.T) {
	linked := func(s *stage) {
		s.node("n1", mode.Topology)
		s.runs("n1", podOf("a", 5), "linked")
		s.runs("n1", podOf("b", 4), "linked")
	}
	beside := wishes(podOf("p", 9), "any")
	beside.claims = append(beside.claims, wishes(beside.pod, "monitor").claims...)
	three := wishes(podOf("p", 9), "any", "any", "any")
	three.claims = append(three.claims, wishes(three.pod, "look").claims...)
	for name, test := range map[string]struct {
		stage func(*stage)
		wish  wish
		// want are the node and the victims, or a part of why there are none.
		want string
	}{
		"to linked GPUs":                         {linked, wishes(podOf("p", 9), "monitor"), "adminAccess"},
		"to linked GPUs, in one claim with some": {linked, wishes(podOf("p", 9), "linked", "monitor"), "adminAccess"},
		"beside a GPU": {func(s *stage) {
			s.node("n1", mode.Exclusive)
			s.runs("n1", podOf("a", 5), "gpu", "gpu")
		}, beside, "n1 a"},
		"beside a GPU, where it would have to wait": {func(s *stage) {
			linked(s)
			s.node("n2", mode.Exclusive)
			s.runs("n2", podOf("c", 6), "gpu", "gpu")
		}, beside, "n2 c"},
		"beside a GPU, which is free where it would have to wait": {func(s *stage) {
			s.node("n1", mode.Topology)
			s.runs("n1", podOf("b", 4), "linked")
			s.node("n2", mode.Exclusive)
			s.runs("n2", podOf("c", 6), "gpu", "gpu")
		}, beside, "n2 c"},
		"beside GPUs, until one that leaves has ended": {func(s *stage) {
			s.node("n1", mode.Topology)
			s.runs("n1", podOf("l", 4, terminating(noon.Add(time.Minute))), "linked")
			s.runs("n1", podOf("b", 1), "linked")
			s.node("n2", mode.Topology)
			s.runs("n2", podOf("c", 6), "linked")
			s.runs("n2", podOf("d", 6), "linked")
		}, three, "pods are leaving the best node, n1"},
		"it holds no GPU, but CPUs": {func(s *stage) {
			s.node("n1", mode.Exclusive)
			s.runs("n1", podOf("a", 5, cpus("1")), "gpu", "gpu")
			s.runs("n1", podOf("m", 0, cpus("6")), "monitor")
		}, wishes(podOf("p", 9, cpus("4")), "gpu"), "would not fit"},
		"a GPU is held beside it": {func(s *stage) {
			n, m := s.node("n1", mode.Exclusive), podOf("m", 0, cpus("6"))
			s.runs("n1", podOf("a", 5, cpus("1")), "gpu")
			s.runs("n1", m, "gpu")
			s.claimed(n, []string{"monitor"}, m)
		}, wishes(podOf("p", 9, cpus("4")), "gpu"), "n1 m"},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStage(t)
			test.stage(s)
			s.plans(test.wish, test.want)
		})
	}
}
