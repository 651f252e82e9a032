// SPDX-License-Identifier: Apache-2.0

package publish

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	k8stesting "k8s.io/client-go/testing"
	"k8s.io/dynamic-resource-allocation/resourceslice"
	"k8s.io/klog/v2/ktesting"

	"github.com/gpushare/dra-driver-gpushare/internal/apitest"
	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/mode"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/state"
)

// asked counts what the API server was asked about claims since the last call.
func (b *bench) asked(verb string) int {
	n := 0
	for _, action := range b.client.Actions() {
		if action.Matches(verb, "resourceclaims") {
			n++
		}
	}
	return n
}

// leaving is a node that has been closed for Settle to change from share to
// default, and that nobody was asked about.
func leaving(t *testing.T) *bench {
	t.Helper()
	b := sharing(t)
	b.mode("default")
	b.reconciled(t, false, shareClosed)
	b.clock.Step(mode.Settle)
	b.client.ClearActions()
	return b
}

// A list of all claims is dear, and what is prepared here answers as well.
func TestWhatIsPreparedHereSavesListingClaims(t *testing.T) {
	b := leaving(t)
	b.allocate(t, "gpu-0-share", "trainer")
	b.records = []state.Record{recordOf("held", shareOf(0, 1))}
	for range 10 {
		b.reconciled(t, false, shareClosed)
		b.clock.Step(retryInterval)
	}
	if lists, gets := b.asked("list"), b.asked("get"); lists != 0 || gets != 1 {
		t.Errorf("%d lists of claims and %d looks at one, want none and one", lists, gets)
	}
	expect.Says(t, b.events.current[v1alpha1.ReasonModeSwitchWaiting], "pod team/trainer")
	// Unprepared, it is allocated for a moment still.
	b.records = nil
	b.reconciled(t, false, shareClosed)
	b.freed(t, whole)
}

func TestEventNamesNoMoreClaimsThanItAskedFor(t *testing.T) {
	b := leaving(t)
	for i := range mostNamed + 5 {
		b.records = append(b.records, recordOf(fmt.Sprintf("c%02d", i), shareOf(0, 1)))
	}
	b.reconciled(t, false, shareClosed)
	expect.Equal(t, mostNamed, b.asked("get"), "claims were read")
	expect.Says(t, b.events.current[v1alpha1.ReasonModeSwitchWaiting], "claim team/c09 (its pod is "+
		"being stopped) and 5 more")
}

// A claim that stays allocated, for days maybe, without being prepared.
func TestClaimsAreListedMoreAndMoreRarely(t *testing.T) {
	b := leaving(t)
	b.allocate(t, "gpu-0-share", "trainer")
	const waited = 10 * time.Minute
	for range waited / retryInterval {
		b.reconciled(t, false, shareClosed)
		b.clock.Step(retryInterval)
	}
	if lists := b.asked("list"); lists < int(waited/askAgain.Most) || lists > int(waited/askAgain.Most)+4 {
		t.Errorf("claims were listed %d times in %s", lists, waited)
	}
	b.release(t)
	b.clock.Step(askAgain.Most)
	b.reconciled(t, true, whole)
	// The next change does not pay for this one.
	b.mode("share")
	b.switched(t, wholeClosed, shares)
}

func TestClaimsAreReadPageByPage(t *testing.T) {
	b := leaving(t)
	b.allocate(t, "gpu-0-share", "trainer")
	stored, err := b.client.ResourceV1().ResourceClaims("team").Get(t.Context(), "held", metav1.GetOptions{})
	expect.NoError(t, err)
	pages := map[string]*resourceapi.ResourceClaimList{
		"": {ListMeta: metav1.ListMeta{Continue: "more"},
			Items: []resourceapi.ResourceClaim{{ObjectMeta: metav1.ObjectMeta{Name: "other"}}}},
		"more": {Items: []resourceapi.ResourceClaim{*stored}},
	}
	var asked []string
	apitest.Answer(b.client, "list", "resourceclaims", func(action k8stesting.Action) (bool, runtime.Object, error) {
		o := action.(k8stesting.ListActionImpl).GetListOptions()
		if o.Limit == 0 || o.ResourceVersion != "" {
			t.Errorf("asked with limit %d and resourceVersion %q", o.Limit, o.ResourceVersion)
		}
		asked = append(asked, o.Continue)
		return true, pages[o.Continue], nil
	})
	b.reconciled(t, false, shareClosed)
	expect.Equal(t, []string{"", "more"}, asked, "pages that were read")
}

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
			b.freed(t, whole)
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
