// SPDX-License-Identifier: Apache-2.0

package driver

import (
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"
	testingclock "k8s.io/utils/clock/testing"

	"github.com/gpushare/dra-driver-gpushare/cdi"
	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/internal/seen"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/metrics"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/orphans"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/prepare"
)

// The kubelet kills what a pod has left in its control group only after the claim's release has succeeded: a process
// that the runtime has lost must not keep the pod, and what the process uses must not be released.
func TestProcessThatOutlivesItsPod(t *testing.T) {
	a, store := agentWithClaims(t, 1)
	now := running{pods: map[types.UID]bool{"p0": true}}
	clock := testingclock.NewFakeClock(time.Now())
	inUse := seen.NewSince[types.UID](clock)
	d := &driver{inUse: inUse, counts: metrics.NewPlugin(prometheus.NewRegistry()),
		orphans: orphans.New(orphans.Options{}), publisher: a.publisher,
		preparer: prepare.New(prepare.Options{Store: store, Node: now, Specs: cdi.Dir(t.TempDir()),
			Listener: preparerListener{inUse: inUse}})}
	unprepare := func() error {
		t.Helper()
		errs, err := d.UnprepareResourceClaims(t.Context(), []kubeletplugin.NamespacedObject{
			{NamespacedName: types.NamespacedName{Namespace: "team", Name: "c0"}, UID: "uid0"}})
		expect.NoError(t, err)
		return errs["uid0"]
	}
	held := func() bool {
		t.Helper()
		_, found, err := store.Get("uid0")
		expect.NoError(t, err)
		return found
	}
	for range 2 {
		if err := unprepare(); err == nil || !held() {
			t.Errorf("while the pod's process may still end by itself: %v, held: %t", err, held())
		}
		clock.Step(leftoverMost / 2)
	}
	if err := unprepare(); err != nil || !held() {
		t.Errorf("the process has outlived its pod: %v, held: %t", err, held())
	}
	now.pods["p0"] = false
	if err := unprepare(); err != nil || held() {
		t.Errorf("the process has ended: %v, held: %t", err, held())
	}
	// It is not remembered for ever.
	expect.Equal(t, 0, inUse.For("uid0"), "after its release the claim has been in use for")
}
