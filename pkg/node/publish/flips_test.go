// SPDX-License-Identifier: Apache-2.0

package publish

import (
	"context"
	"testing"
	"testing/synctest"

	"k8s.io/apimachinery/pkg/runtime"
	k8stesting "k8s.io/client-go/testing"
	"k8s.io/dynamic-resource-allocation/resourceslice"
	"k8s.io/klog/v2/ktesting"

	"github.com/gpushare/dra-driver-gpushare/internal/apitest"
	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/pkg/mode"
)

// late has what is published from now on stored when the API server is asked so many times more, as by a helper that
// writes in the background; nothing is ever published over what is on its way.
func (b *bench) late(t *testing.T, looks int) {
	var pending []resourceslice.DriverResources
	left := 0
	b.publish = func(_ context.Context, r resourceslice.DriverResources) error {
		expect.Equal(t, 0, len(pending), "changes published while the change before is on its way")
		b.published, pending, left = append(b.published, r), append(pending, r), looks
		return nil
	}
	apitest.Answer(b.client, "list", "resourceslices", func(k8stesting.Action) (bool, runtime.Object, error) {
		if left--; left < 0 && len(pending) > 0 {
			expect.Error(t, b.storeSlice(pending[0]))
			pending = nil
		}
		return false, nil, nil
	})
}

// Whoever changes the label there and back, and again, before the API server has the first change: the closing before
// is not taken for this one, so a claim that came in between keeps the mode.
func TestClosingAfterFlipsOfTheLabel(t *testing.T) {
	for _, looks := range []int{0, 1, 3} {
		synctest.Test(t, func(t *testing.T) {
			b := sharing(t)
			b.mode("default")
			b.reconciled(t, false, shareClosed)
			b.late(t, looks)
			b.mode("share")
			b.reconciled(t, true, shares)
			b.mode("default")
			b.reconciled(t, false, shareClosed)
			// It was stored open for a moment, and closed only since.
			b.allocate(t, "gpu-0-share", "trainer")
			b.clock.Step(mode.Settle)
			b.reconciled(t, false, shareClosed)
			b.release(t)
			b.clock.Step(retryInterval)
			b.reconciled(t, true, whole)
		})
	}
}

// As long as the API server does not take the opening, the node is not closed on top of it.
func TestClosingWaitsForTheOpening(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := sharing(t)
		b.mode("default")
		b.reconciled(t, false, shareClosed)
		b.late(t, 1<<20)
		b.mode("share")
		b.reconciled(t, true, shares)
		b.mode("default")
		_, ctx := ktesting.NewTestContext(t)
		for range 3 {
			if _, err := b.reconcile(ctx); err == nil {
				t.Fatal("the node is closed while its opening is on its way")
			}
			b.clock.Step(mode.Settle)
		}
		if !b.closedSince.IsZero() || b.devices(t) != shares {
			t.Errorf("closed since %v, published %s", b.closedSince, b.devices(t))
		}
	})
}
