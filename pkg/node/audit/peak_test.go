// SPDX-License-Identifier: Apache-2.0

package audit

import (
	"testing"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
)

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
