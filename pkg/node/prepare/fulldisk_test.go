// SPDX-License-Identifier: Apache-2.0

package prepare

import (
	"fmt"
	"testing"

	"golang.org/x/sys/unix"
	resourceapi "k8s.io/api/resource/v1"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/state"
)

// fullDisk is a store in which nothing can be written, from the n-th write on; files can be removed.
type fullDisk struct {
	Store
	left int
}

func (s *fullDisk) Put(r state.Record) error {
	if s.left--; s.left < 0 {
		return fmt.Errorf("write the state: %w", unix.ENOSPC)
	}
	return s.Store.Put(r)
}

// What is taken back is what makes room on a full disk, so nothing has to be written for it.
func TestNothingIsWrittenToTakeAClaimBack(t *testing.T) {
	for name, tc := range map[string]struct {
		claim *resourceapi.ResourceClaim
		// before changes what there is before the claim ends, failed before that is tried again.
		before, failed func(n *node, d *dynamicGPU)
		wantFailure    string
	}{
		"a whole GPU":   {claim: wholeGPUs("a", 0)},
		"an instance":   {claim: instanceClaim("a", oneSlice)},
		"two instances": {claim: instanceClaim("a", oneSlice, elsewhere)},
		"one that is gone": {claim: instanceClaim("a", oneSlice, elsewhere), before: func(n *node, d *dynamicGPU) {
			d.instances = d.instances[1:]
			n.has(d.machine())
		}},
		"one that a program uses": {claim: instanceClaim("a", oneSlice),
			before: func(_ *node, d *dynamicGPU) {
				d.fails = map[string]error{"destroy": fmt.Errorf("destroying: %w", gpu.ErrInstanceInUse)}
			},
			wantFailure: "it stays held until that program ends",
			failed:      func(_ *node, d *dynamicGPU) { d.fails = nil }},
		"the process ends meanwhile": {claim: instanceClaim("a", oneSlice, elsewhere),
			before: func(_ *node, d *dynamicGPU) {
				d.fails = map[string]error{"destroy": fmt.Errorf("destroying: %w", gpu.ErrInstanceInUse)}
			},
			wantFailure: "it stays held until that program ends",
			failed: func(n *node, d *dynamicGPU) {
				d.fails, d.instances = nil, d.instances[1:]
				n.restart(t)
				n.cuts(d)
				n.options.Store = &fullDisk{Store: n.options.Store}
			}},
	} {
		t.Run(name, func(t *testing.T) {
			n, d := cuttingNode(t)
			n.prepared(t, tc.claim)
			n.options.Store = &fullDisk{Store: n.options.Store}
			if tc.before != nil {
				tc.before(n, d)
			}
			if tc.wantFailure != "" {
				expect.Error(t, n.Unprepare(t.Context(), "a"), tc.wantFailure)
				// Nobody is told that the claim lost what is being taken back.
				if r := n.recordOf(t, "a"); r.Phase != state.Preparing {
					t.Errorf("the record is %s", r.Phase)
				}
				tc.failed(n, d)
			}
			expect.NoError(t, n.Unprepare(t.Context(), "a"))
			n.leaves(t, d)
		})
	}
}

// A claim whose preparation finds no room for a record leaves nothing, wherever that is.
func TestPreparationOnAFullDiskLeavesNothing(t *testing.T) {
	claim := instanceClaim("a", oneSlice, elsewhere)
	for writes := 0; ; writes++ {
		n, d := cuttingNode(t)
		n.options.Store = &fullDisk{Store: n.options.Store, left: writes}
		_, err := n.Prepare(t.Context(), claim)
		if err == nil {
			if writes < 4 {
				t.Errorf("it writes %d times only: this tests less than it says", writes)
			}
			return
		}
		expect.Error(t, err, "no space left on device")
		n.leaves(t, d)
	}
}
