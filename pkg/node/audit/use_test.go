// SPDX-License-Identifier: Apache-2.0

package audit

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

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

// One share can hold all processes that MPS serves on a GPU: the container with more than its part is named, when few
// are left, and nobody else.
func TestClientSlots(t *testing.T) {
	small, large := pod("small", "main=s"), pod("large", "main=l")
	limited := map[string][]claim.Grant{"s": {share("gpu", 0, 1, underMPS)}, "l": {share("big", 0, 12, underMPS)}}
	unlimited := map[string][]claim.Grant{"s": {share("gpu", 0, 1)}, "l": {share("big", 0, 12)}}
	for name, tc := range map[string]struct {
		claims       map[string][]claim.Grant
		small, large int
		slots        int
		want         string
	}{
		"one share has all":                {limited, 48, 0, 48, "small"},
		"one share has more than its part": {limited, 20, 20, 48, "small"},
		"it would, and most are free":      {limited, 20, 10, 48, ""},
		"many, by a share as large":        {limited, 3, 38, 48, ""},
		"both within their parts":          {limited, 3, 33, 48, ""},
		"without MPS":                      {unlimited, 48, 0, 48, ""},
		"not judged":                       {limited, 48, 0, 0, ""},
	} {
		t.Run(name, func(t *testing.T) {
			n := node{pods: []*corev1.Pod{small, large}, claims: tc.claims, rules: Rules{ClientSlots: tc.slots}}
			for range tc.small {
				n.on = append(n.on, process{mib: 1, owner: in(small, "main"), client: true})
			}
			for range tc.large {
				n.on = append(n.on, process{mib: 1, owner: in(large, "main"), client: true})
			}
			var got []Finding
			for _, f := range Judge(n.input()).Findings {
				if f.Kind == ClientSlots {
					got = append(got, f)
				}
			}
			switch {
			case tc.want == "" && len(got) > 0, tc.want != "" && len(got) != 1:
				t.Fatalf("findings %+v, want one of %q", got, tc.want)
			case tc.want == "":
				return
			}
			if f := got[0]; f.Pod.Name != tc.want || !f.MayEvict ||
				!strings.Contains(f.Message, "where MPS serves 48, and its share of 1 GiB has 3 of these") {
				t.Errorf("%+v", f)
			}
		})
	}
}

// The peak of a container stays while its claim is prepared, also when its processes have ended, and goes with the
// claim.
func TestPeaks(t *testing.T) {
	use := func(container string, mib int64) ClaimUse {
		return ClaimUse{Namespace: "a", Pod: "p", Container: container, Claim: "c,d", UUID: "GPU-a", UsedMiB: mib}
	}
	peak := func(container string, mib int64) ClaimPeak {
		return ClaimPeak{Namespace: "a", Pod: "p", Container: container, Claim: "c,d", UUID: "GPU-a", MiB: mib}
	}
	both := []Claim{{Namespace: "a", Name: "d"}, {Namespace: "b", Name: "c"}}
	var p Peaks
	if p.Observe(nil, nil); p.List() != nil {
		t.Errorf("peaks of nobody: %v", p.List())
	}
	for _, step := range []struct {
		uses   []ClaimUse
		claims []Claim
		want   []ClaimPeak
	}{
		{[]ClaimUse{use("x", 5), use("y", 1)}, both, []ClaimPeak{peak("x", 5), peak("y", 1)}},
		{[]ClaimUse{use("x", 7)}, both, []ClaimPeak{peak("x", 7), peak("y", 1)}},
		{[]ClaimUse{use("x", 2)}, both, []ClaimPeak{peak("x", 7), peak("y", 1)}},
		{nil, nil, []ClaimPeak{peak("x", 7), peak("y", 1)}},
		// Of another namespace.
		{nil, both[1:], nil},
	} {
		p.Observe(step.uses, step.claims)
		expect.Equal(t, step.want, p.List(), "after %v", step.uses)
	}
}
