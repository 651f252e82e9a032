// SPDX-License-Identifier: Apache-2.0

package usage

import (
	"strings"
	"testing"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/pkg/claim"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
	"github.com/gpushare/dra-driver-gpushare/pkg/held"
	"github.com/gpushare/dra-driver-gpushare/pkg/mode"
)

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
