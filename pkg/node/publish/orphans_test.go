// SPDX-License-Identifier: Apache-2.0

package publish

import (
	"errors"
	"testing"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/claim"
	"github.com/gpushare/dra-driver-gpushare/pkg/mode"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/orphans"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/state"
)

// What a claim holds that is gone is not offered while its pod's processes run.
func TestWhatGoneClaimsHoldIsNotOffered(t *testing.T) {
	record := func(grants ...claim.Grant) state.Record {
		return state.Record{UID: "u", Namespace: "team", Name: "gone", Grants: grants}
	}
	part := claim.Grant{Mode: mode.Share, Device: "gpu-0-share", GPU: claim.GPU{UUID: "GPU-0"}, Units: 4}
	all := claim.Grant{Mode: mode.Exclusive, Device: "gpu-1", GPU: claim.GPU{Index: 1, UUID: "GPU-1"}}
	for name, test := range map[string]struct {
		label  string
		record state.Record
		open   string
		want   string
		memory string
	}{
		"a share": {"share", record(part), shares, shares, "11Gi 15Gi"},
		"a GPU":   {"default", record(all), whole, "gpu-0 gpu-1!", ""},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			b.mode(test.label)
			b.records = []state.Record{test.record}
			b.reconciled(t, true, test.open)
			b.SetOrphans([]orphans.Orphan{{Record: test.record, User: "p"}})
			b.reconciled(t, true, test.want)
			if test.memory != "" {
				expect.Equal(t, test.memory, b.memoryOf(t), "memory")
			}
			expect.Says(t, b.events.current[v1alpha1.ReasonHeldByGoneClaim], "by claim team/gone "+
				"(processes of the pod with UID p still run)")
			b.SetOrphans([]orphans.Orphan{{Record: test.record, Unknown: errors.New("no control groups")}})
			b.reconciled(t, true, test.want)
			expect.Says(t, b.events.current[v1alpha1.ReasonHeldByGoneClaim], "is not known (no control groups)")
			// The kubelet has it unprepared.
			b.records = nil
			b.reconciled(t, true, test.open)
			if got, told := b.events.current[v1alpha1.ReasonHeldByGoneClaim]; told {
				t.Errorf("event %q", got)
			}
		})
	}
}

// What an orphan holds makes its GPU fuller, and counts once.
func TestOrphansInTheOrderOfGPUs(t *testing.T) {
	b := newBench(t)
	b.mode("share")
	b.records = []state.Record{{UID: "u", Grants: []claim.Grant{{Mode: mode.Share, Device: "gpu-1-share",
		GPU: claim.GPU{Index: 1, UUID: "GPU-1"}, Units: 8}}}}
	b.SetOrphans([]orphans.Orphan{{Record: b.records[0], User: "p"}})
	b.reconciled(t, true, "gpu-1-share gpu-0-share")
}
