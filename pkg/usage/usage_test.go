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

// What holds a MIG instance, or what was there before it, and what then fits. Ids of instances are used
// again, and with them their device nodes: a container keeps those that it was started with.
func TestInstancesFit(t *testing.T) {
	parent := claim.GPU{Index: 1, UUID: "GPU-p", MemoryMiB: 81920}
	instance := func(uuid string, gi int) claim.Grant {
		return claim.Grant{Request: "r", Mode: mode.MIG, GPU: claim.GPU{Index: 1, UUID: uuid, MemoryMiB: 9728,
			MIG: &claim.Instance{ParentUUID: "GPU-p", Profile: "1g.10gb", GI: gi, Start: gi - 7, Size: 1}}}
	}
	whole := claim.Grant{Request: "r", Mode: mode.Exclusive, GPU: parent}
	share := claim.Grant{Request: "r", Mode: mode.Share, GPU: parent, Units: 1, Slots: 1}
	admin := instance("MIG-a", 7)
	admin.Admin = true
	other := instance("MIG-a", 7)
	other.GPU.MIG.ParentUUID = "GPU-other"
	// The first is being made: what lies in its place may be what was made for it.
	unmade, elsewhere := instance("", gpu.NoCI), instance("", gpu.NoCI)
	unmade.GPU.MIG.Made, unmade.GPU.MIG.Start = true, 0
	elsewhere.GPU.MIG.Made, elsewhere.GPU.MIG.Start = true, 1
	for name, tc := range map[string]struct {
		held, wanted claim.Grant
		reserved     held.GPU
		want         string
	}{
		"another instance": {instance("MIG-a", 7), instance("MIG-b", 8), held.GPU{}, ""},
		"the same": {instance("MIG-a", 7), instance("MIG-a", 7), held.GPU{},
			"already held as a whole by claim team/other"},
		"the same, an administrator": {instance("MIG-a", 7), admin, held.GPU{}, ""},
		"of another GPU":             {other, instance("MIG-b", 7), held.GPU{}, ""},
		"created again with the id": {instance("MIG-a", 7), instance("MIG-b", 7), held.GPU{},
			"GPU 1's 1g.10gb at slice 0 (MIG-b): claim team/other holds the instance that was there before (MIG-a)"},
		"one that is there, where one is being made": {unmade, instance("MIG-a", 7), held.GPU{},
			"GPU 1's 1g.10gb at slice 0 (MIG-a): claim team/other has it made, or destroyed, just now"},
		"one that is there, beside one that is being made": {elsewhere, instance("MIG-a", 7), held.GPU{}, ""},
		"the GPU, not in MIG mode any more": {instance("MIG-a", 7), whole, held.GPU{},
			"it was in MIG mode, and claim team/other still holds an instance of it"},
		"a share of it": {instance("MIG-a", 7), share, held.GPU{}, "still holds an instance"},
		"of a GPU that was whole": {whole, instance("MIG-a", 7), held.GPU{},
			"claim team/other holds the GPU as it was before it was in MIG mode"},
		"of a GPU that was shared": {share, instance("MIG-a", 7), held.GPU{}, "before it was in MIG mode"},
		"of a GPU of pods without a claim": {admin, instance("MIG-a", 7),
			held.GPU{Taken: held.Taken{Whole: true}, Pods: []string{"team/old"}},
			"without a claim: team/old"},
		"of a GPU of another driver": {admin, instance("MIG-a", 7), held.GPU{Driver: "gpu.nvidia.com"},
			"driver gpu.nvidia.com publishes the GPU"},
	} {
		t.Run(name, func(t *testing.T) {
			reserved := func(uuid string) held.GPU {
				if uuid == "GPU-p" {
					return tc.reserved
				}
				return held.GPU{}
			}
			err := CheckOvercommit([]Claim{{Namespace: "team", Name: "other", Grants: []claim.Grant{tc.held}}}, reserved,
				Claim{Namespace: "team", Name: "new", Grants: []claim.Grant{tc.wanted}})
			switch {
			case tc.want == "" && err != nil:
				t.Errorf("refused: %v", err)
			case tc.want != "" && (err == nil || !strings.Contains(err.Error(), tc.want) || !IsInUse(err)):
				t.Errorf("error %v, want one that contains %q", err, tc.want)
			}
		})
	}
	held := []Claim{{Namespace: "team", Name: "other", Grants: []claim.Grant{instance("MIG-a", 7)}}}
	if Of(held, nothing).GPU("GPU-p").Takes(mode.Exclusive, mode.Exclusive, 80, 1) {
		t.Error("a GPU takes claims while one of its instances is held")
	}
	if got := AsReserved(held[0], mode.Exclusive); len(got) != 1 || !got["MIG-a"].Whole {
		t.Errorf("as reserved: %+v", got)
	}
}

// The id of an instance that is made for a claim is known once it was made.
func TestMadeInstanceFits(t *testing.T) {
	instance := func(uuid string, gi, start int) claim.Grant {
		return claim.Grant{Mode: mode.MIG, GPU: claim.GPU{UUID: uuid, MIG: &claim.Instance{ParentUUID: "GPU-p", GI: gi,
			Start: start, Size: 4, Made: true}}}
	}
	others := []Claim{{Namespace: "team", Name: "other", Grants: []claim.Grant{instance("MIG-a", 1, 0)}}}
	expect.NoErrorf(t, CheckMade(others, "team", instance("", 2, 4)), "another id")
	err := CheckMade(others, "elsewhere", instance("", 1, 4))
	if !IsInUse(err) || !strings.Contains(err.Error(), "another namespace's claim holds the instance") {
		t.Errorf("the same id: %v", err)
	}
}
