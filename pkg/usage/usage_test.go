// SPDX-License-Identifier: Apache-2.0

package usage

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/pkg/claim"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
	"github.com/gpushare/dra-driver-gpushare/pkg/held"
	"github.com/gpushare/dra-driver-gpushare/pkg/mode"
)

func TestGPU(t *testing.T) {
	g := claim.GPU{UUID: "GPU-a", MemoryMiB: 16130} // 15 units
	share := func(m mode.Mode, units, cores, slots int64) claim.Grant {
		return claim.Grant{Mode: m, GPU: g, Units: units, CoresPercent: cores, Slots: slots}
	}
	whole := claim.Grant{Mode: mode.Exclusive, GPU: g}
	admin := claim.Grant{Mode: mode.Exclusive, GPU: g, Admin: true}
	some := held.GPU{Taken: held.Taken{Amount: gpu.Amount{Units: 4, Shares: 2}},
		MemoryOnly: true, Pods: []string{"old/a"}}
	all := held.GPU{Taken: held.Taken{Amount: gpu.Amount{Shares: 1}, Whole: true}, Pods: []string{"old/a"}}
	for name, tc := range map[string]struct {
		grants   []claim.Grant
		reserved held.GPU
		used     int64
		free     gpu.Amount
		// share, core and whole say whether a GPU of a dynamic node takes another claim
		// of mode share, core-mem and exclusive; inShare whether one of a node of mode
		// share does of that mode.
		share, core, whole, inShare bool
	}{
		"free": {nil, held.GPU{}, 0, gpu.Amount{Units: 15, Cores: 100, Shares: 8}, true, true, true,
			true},
		"administrator": {[]claim.Grant{admin}, held.GPU{}, 0, gpu.Amount{Units: 15, Cores: 100, Shares: 8},
			true, true, true, true},
		"whole": {[]claim.Grant{whole}, held.GPU{}, 15, gpu.Amount{Cores: 100, Shares: 7}, false,
			false, false, false},
		"shares": {[]claim.Grant{share(mode.Share, 3, 0, 1), share(mode.Share, 4, 0, 0)}, held.GPU{}, 7,
			gpu.Amount{Units: 8, Cores: 100, Shares: 6}, true, false, false, true},
		"counts as several": {[]claim.Grant{share(mode.Share, 3, 0, 8)}, held.GPU{}, 3,
			gpu.Amount{Units: 12, Cores: 100}, false, false, false, false},
		"no memory left": {[]claim.Grant{share(mode.Share, 15, 0, 1)}, held.GPU{}, 15,
			gpu.Amount{Cores: 100, Shares: 7}, false, false, false, false},
		"no compute left": {[]claim.Grant{share(mode.CoreMem, 3, 100, 1)}, held.GPU{}, 3,
			gpu.Amount{Units: 12, Shares: 7}, false, false, false, false},
		"reserved": {[]claim.Grant{share(mode.Share, 3, 0, 1)}, some, 7,
			gpu.Amount{Units: 8, Cores: 100, Shares: 5}, false, false, false, true},
		"reserved as a whole": {nil, all, 15, gpu.Amount{}, false, false, false, false},
	} {
		t.Run(name, func(t *testing.T) {
			u := Of([]Claim{{Namespace: "team", Name: "c", Grants: tc.grants}},
				func(string) held.GPU { return tc.reserved }).GPU("GPU-a")
			expect.Equal(t, tc.used, u.Used(15), "units are used")
			expect.Equal(t, tc.free, u.Free(15, 8), "free")
			got := []bool{
				u.Takes(mode.Share, mode.Dynamic, 15, 8), u.Takes(mode.CoreMem, mode.Dynamic, 15, 8),
				u.Takes(mode.Exclusive, mode.Dynamic, 15, 8), u.Takes(mode.Share, mode.Share, 15, 8),
			}
			expect.Equal(t, []bool{tc.share, tc.core, tc.whole, tc.inShare}, got, "takes")
		})
	}
}

// What a refusal says comes into the Events of the refused pod, which its tenant reads:
// names of other tenants' claims and pods do not belong there.
func TestRefusalsNameNoOtherTenants(t *testing.T) {
	g := claim.GPU{Index: 0, UUID: "GPU-a", MemoryMiB: 16130}
	whole := claim.Grant{Request: "r", Mode: mode.Exclusive, GPU: g}
	share := claim.Grant{Request: "r", Mode: mode.Share, GPU: g, Units: 15}
	other := claim.Grant{Request: "r", Mode: mode.MPS, GPU: g, Units: 15}
	old := held.GPU{Taken: held.Taken{Amount: gpu.Amount{Units: 1, Shares: 1}}, MemoryOnly: true,
		Pods: []string{"secret-team/secret-a", "team/own"}}
	for name, test := range map[string]struct {
		granted, wanted claim.Grant
		reserved        held.GPU
		own, others     string
	}{
		"whole beside whole": {whole, whole, held.GPU{}, "held as a whole by claim team/c", "held as a whole by " +
			"another namespace's claim"},
		"whole beside share": {share, whole, held.GPU{}, "but claim team/c holds a share",
			"but another namespace's claim holds a share"},
		"another mode": {other, share, held.GPU{}, "but claim team/c holds a share",
			"but another namespace's claim holds a share"},
		"too much": {share, share, held.GPU{}, "15 of 15 GiB are already granted",
			"15 of 15 GiB are already granted"},
		"without a claim": {share, share, old, "started: team/own, 1 of other namespaces", "started: team/own, 1 of " +
			"other namespaces"},
	} {
		t.Run(name, func(t *testing.T) {
			for namespace, want := range map[string]string{"team": test.own, "secret-team": test.others} {
				claimName := "c"
				if namespace != "team" {
					claimName = "secret"
				}
				err := CheckOvercommit([]Claim{{Namespace: namespace, Name: claimName, Grants: []claim.Grant{test.granted}}},
					func(string) held.GPU { return test.reserved },
					Claim{Namespace: "team", Name: "w", Grants: []claim.Grant{test.wanted}})
				if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "secret") {
					t.Errorf("error %v, want %q", err, want)
				}
				by := InUseBy(fmt.Errorf("refused: %w", err))
				expect.Equal(t, []string{"claim " + namespace + "/" + claimName}, by, "held by")
			}
		})
	}
	if by := InUseBy(errors.New("another")); by != nil {
		t.Errorf("held by %q", by)
	}
}
