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
