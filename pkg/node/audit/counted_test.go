// SPDX-License-Identifier: Apache-2.0

package audit

import (
	"strings"
	"testing"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/pkg/claim"
)

func byKernel(g *claim.Grant) { g.Isolation, g.KernelMemory = "kernel", true }

// counts is a node whose only container has 3 units of 3226 MiB, whose processes hold so many
// MiB, and for whose control group the driver counts so much.
func counts(counted int64, held ...int64) Judgement {
	p := pod("a", "main=c")
	n := node{pods: nil, claims: map[string][]claim.Grant{"c": {share("r", 0, 3, byKernel)}}}
	n.pods = append(n.pods, p)
	for _, mib := range held {
		n.on = append(n.on, process{mib: mib, owner: in(p, "main")})
	}
	input := n.input()
	input.Counted = map[string][]Counted{"GPU-0": {{Pod: p.UID, Container: "a-main", MiB: counted}}}
	return Judge(input)
}

// What the driver counts for a control group is all that its processes have, whichever it
// tells of; memory that is not counted passes the limit.
func TestWhatTheDriverCounts(t *testing.T) {
	for name, tc := range map[string]struct {
		counted   int64
		held      []int64
		used      int64
		processes int
		finds     Kind
	}{
		"as its processes hold":         {counted: 1000, held: []int64{600, 400}, used: 1000, processes: 2},
		"what NVML counts beside":       {counted: 1000, held: []int64{1060}, used: 1060, processes: 1},
		"processes in other namespaces": {counted: 2000, held: []int64{600}, used: 2000, processes: 1},
		"no process is told of":         {counted: 2000, used: 2000},
		"managed memory": {counted: 600, held: []int64{3000}, used: 3000, processes: 1,
			finds: PastLimit},
		"more than was granted": {counted: 4000, held: []int64{600}, used: 4000, processes: 1,
			finds: OverShare},
		"nothing is held":                      {counted: 0, processes: 0},
		"more than was granted, of no process": {counted: 4000, used: 4000, finds: OverShare},
	} {
		t.Run(name, func(t *testing.T) {
			j := counts(tc.counted, tc.held...)
			if tc.used == 0 {
				expect.Equal(t, 0, len(j.Claims), "claims in use %+v", j.Claims)
				return
			}
			if len(j.Claims) != 1 || j.Claims[0].UsedMiB != tc.used || j.Claims[0].Processes != tc.processes ||
				j.Claims[0].Container != "main" {
				t.Errorf("use %+v", j.Claims)
			}
			var kinds []Kind
			for _, f := range j.Findings {
				kinds = append(kinds, f.Kind)
				if f.Kind == PastLimit && (f.MayEvict || !strings.Contains(f.Message, "holds 3000 MiB") ||
					!strings.Contains(f.Message, "counts 600 MiB")) {
					t.Errorf("%+v", f)
				}
			}
			if tc.finds == "" && len(kinds) > 0 || tc.finds != "" && (len(kinds) != 1 || kinds[0] != tc.finds) {
				t.Errorf("findings %q, want %q", kinds, tc.finds)
			}
		})
	}
}
