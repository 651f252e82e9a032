// SPDX-License-Identifier: Apache-2.0

package usage

import (
	"testing"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/pkg/claim"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
	"github.com/gpushare/dra-driver-gpushare/pkg/held"
	"github.com/gpushare/dra-driver-gpushare/pkg/mode"
)

// A GPU can have memory left for more shares than can be kept apart.
func TestCheckOvercommitCountsShares(t *testing.T) {
	g := claim.GPU{Index: 0, UUID: "GPU-a", MemoryMiB: 81920}
	share := func(slots int64) claim.Grant {
		return claim.Grant{Request: "r", Mode: mode.MPS, Isolation: "mps", GPU: g, Units: 1, Slots: slots}
	}
	for name, tc := range map[string]struct {
		granted  int
		slots    int64 // of each
		reserved int64
		wanted   []claim.Grant
		want     string
	}{
		"the last one": {47, 1, 0, []claim.Grant{share(1)}, ""},
		"one too many": {48, 1, 0, []claim.Grant{share(1)}, "1 of its shares asked for, but 48 of the 48 " +
			"that mps keeps apart are already granted"},
		"records of earlier versions": {48, 0, 0, []claim.Grant{share(1)}, "48 of the 48"},
		"that count as several":       {12, 4, 0, []claim.Grant{share(1)}, "48 of the 48"},
		"asked for several":           {46, 1, 0, []claim.Grant{share(3)}, "3 of its shares asked for, but 46"},
		"two requests":                {47, 1, 0, []claim.Grant{share(1), share(1)}, "48 of the 48"},
		"beside pods without a claim": {40, 1, 8, []claim.Grant{share(1)}, "48 of the 48 that mps keeps apart are " +
			"already granted, of them"},
		"for an administrator, always": {48, 1, 0, []claim.Grant{{Request: "r", Mode: mode.MPS, GPU: g, Admin: true}},
			""},
	} {
		t.Run(name, func(t *testing.T) {
			var others []Claim
			for range tc.granted {
				others = append(others, Claim{Namespace: "team", Name: "other", Grants: []claim.Grant{share(tc.slots)}})
			}
			reserved := func(string) held.GPU {
				c := held.GPU{Taken: held.Taken{Amount: gpu.Amount{Shares: tc.reserved}}}
				if tc.reserved > 0 {
					c.Pods = []string{"old/a"}
				}
				return c
			}
			expect.Error(t, CheckOvercommit(others, reserved, Claim{Namespace: "team", Name: "second", Grants: tc.wanted}),
				tc.want)
		})
	}
}

// nothingReserved: no pod holds a GPU without a claim.
func nothingReserved(string) held.GPU { return held.GPU{} }

func TestCheckOvercommitBesidePodsWithoutClaim(t *testing.T) {
	g := claim.GPU{Index: 0, UUID: "GPU-a", MemoryMiB: 16130}
	share := func(m mode.Mode, units, cores int64) claim.Grant {
		return claim.Grant{Request: "r", Mode: m, GPU: g, Units: units, CoresPercent: cores}
	}
	whole := claim.Grant{Request: "r", Mode: mode.Exclusive, GPU: g}
	memory := held.GPU{Taken: held.Taken{Amount: gpu.Amount{Units: 6, Shares: 1}}, MemoryOnly: true,
		Pods: []string{"old/a", "old/b"}}
	compute := held.GPU{Taken: held.Taken{Amount: gpu.Amount{Units: 6, Cores: 60, Shares: 1}},
		Pods: []string{"old/a"}}
	all := held.GPU{Taken: held.Taken{Amount: gpu.Amount{Shares: 1}, Whole: true}, Pods: []string{"old/a"}}
	nvidias := held.GPU{Taken: held.Taken{Whole: true}, Driver: "gpu.nvidia.com"}
	for name, tc := range map[string]struct {
		reserved held.GPU
		granted  int64
		wanted   claim.Grant
		want     string
	}{
		"the rest": {memory, 5, share(mode.Share, 4, 0), ""},
		"more than the rest": {memory, 5, share(mode.Share, 5, 0), "5 GiB asked for, but 11 of 15 GiB are already " +
			"granted, of them 6 GiB and 0 % without a claim to pods that a device plugin started: 2 of other namespaces"},
		"the whole GPU":       {memory, 0, whole, "hold a part of it in another way without a claim: 2 of other namespaces"},
		"compute beside it":   {memory, 0, share(mode.CoreMem, 1, 5), "without a claim: 2 of other namespaces"},
		"the rest of compute": {compute, 0, share(mode.CoreMem, 9, 40), ""},
		"more of compute": {compute, 0, share(mode.CoreMem, 9, 45), "60 % are already granted, of them 6 GiB and 60 " +
			"% without a claim"},
		"memory beside it":   {compute, 0, share(mode.Share, 1, 0), "without a claim: 1 of other namespaces"},
		"beside a whole GPU": {all, 0, share(mode.Share, 1, 0), "hold all of it without a claim: 1 of other namespaces"},
		// A claim that tolerates the taint of the GPU is not kept off it by the scheduler.
		"of another driver":   {nvidias, 0, whole, "driver gpu.nvidia.com publishes it on this node, too"},
		"access for an admin": {all, 0, claim.Grant{Request: "r", Mode: mode.Exclusive, GPU: g, Admin: true}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			var others []Claim
			if tc.granted > 0 {
				others = []Claim{{Namespace: "team", Name: "first", Grants: []claim.Grant{share(mode.Share, tc.granted, 0)}}}
			}
			err := CheckOvercommit(others, func(uuid string) held.GPU {
				if uuid != g.UUID {
					return held.GPU{}
				}
				return tc.reserved
			}, Claim{Namespace: "team", Name: "second", Grants: []claim.Grant{tc.wanted}})
			expect.Error(t, err, tc.want)
		})
	}
}

func TestCheckOvercommit(t *testing.T) {
	gpu := claim.GPU{Index: 0, UUID: "GPU-a", MemoryMiB: 16130}
	shareOf := func(units, cores int64) claim.Grant {
		return claim.Grant{Request: "r", Mode: mode.Share, GPU: gpu, Units: units, CoresPercent: cores}
	}
	wholeGPU := claim.Grant{Request: "r", Mode: mode.Exclusive, GPU: gpu}
	admin := claim.Grant{Request: "r", Mode: mode.Exclusive, GPU: gpu, Admin: true}
	elsewhere := claim.Grant{Request: "r", Mode: mode.Exclusive,
		GPU: claim.GPU{Index: 1, UUID: "GPU-b", MemoryMiB: 16130}}
	others := func(grants ...claim.Grant) []Claim {
		var hs []Claim
		for _, g := range grants {
			hs = append(hs, Claim{Namespace: "team", Name: "first", Grants: []claim.Grant{g}})
		}
		return hs
	}
	for name, tc := range map[string]struct {
		others []Claim
		wanted []claim.Grant
		want   string
	}{
		"free GPU":           {nil, []claim.Grant{wholeGPU}, ""},
		"other GPU taken":    {others(elsewhere), []claim.Grant{wholeGPU}, ""},
		"whole beside whole": {others(wholeGPU), []claim.Grant{wholeGPU}, "held as a whole by claim team/first"},
		"share beside whole": {others(wholeGPU), []claim.Grant{shareOf(1, 0)}, "held as a whole by claim team/first"},
		"whole beside share": {others(shareOf(1, 0)), []claim.Grant{wholeGPU}, "claim team/first holds a share"},
		"share of another mode": {others(shareOf(1, 0)),
			[]claim.Grant{{Request: "r", Mode: mode.MPS, GPU: gpu, Units: 1}}, "holds a share of it in mode share"},
		"fills to the last unit": {others(shareOf(12, 0)), []claim.Grant{shareOf(3, 0)}, ""},
		"one unit too many": {others(shareOf(12, 0), shareOf(3, 0)), []claim.Grant{shareOf(1, 0)},
			"15 of 15 GiB are already granted"},
		"too much within a claim": {nil, []claim.Grant{shareOf(8, 0), shareOf(8, 0)}, "8 of 15 GiB"},
		"twice the GPU in claim":  {nil, []claim.Grant{wholeGPU, wholeGPU}, "held as a whole"},
		"a linked set's GPU again": {nil, []claim.Grant{wholeGPU, elsewhere, elsewhere}, "GPU 1 (GPU-b): already held as " +
			"a whole by claim team/second"},
		"cores":                   {others(shareOf(1, 75)), []claim.Grant{shareOf(1, 30)}, "75 % are already granted"},
		"admin beside whole":      {others(wholeGPU), []claim.Grant{admin}, ""},
		"whole beside admin":      {others(admin), []claim.Grant{wholeGPU}, ""},
		"admin is not charged":    {nil, []claim.Grant{admin, wholeGPU}, ""},
		"more than the whole GPU": {nil, []claim.Grant{shareOf(16, 0)}, "16 GiB asked for, but 0 of 15"},
	} {
		t.Run(name, func(t *testing.T) {
			err := CheckOvercommit(tc.others, nothingReserved,
				Claim{Namespace: "team", Name: "second", Grants: tc.wanted})
			expect.Error(t, err, tc.want)
		})
	}
}
