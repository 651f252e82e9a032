// SPDX-License-Identifier: Apache-2.0

package publish

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/runtime"
	k8stesting "k8s.io/client-go/testing"
	"k8s.io/klog/v2/ktesting"

	"github.com/gpushare/dra-driver-gpushare/pkg/mode"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/health"
)

// counted are what the metrics were told.
type counted struct {
	lags   []time.Duration
	failed int
}

func (c *counted) Published(lag time.Duration) { c.lags = append(c.lags, lag) }
func (c *counted) PublishFailed()              { c.failed++ }

// A change is behind until a reconciliation succeeds that began after it, however often one
// fails before.
func TestHowFarBehind(t *testing.T) {
	_, ctx := ktesting.NewTestContext(t)
	b, counts := newBench(t), &counted{}
	b.Metrics = counts
	reconcile := func(want error) {
		t.Helper()
		if _, err := b.reconcileNoted(ctx); !errors.Is(err, want) {
			t.Fatalf("error %v, want %v", err, want)
		}
	}
	behind := func(want time.Duration) {
		t.Helper()
		if got := b.Status().Behind; got != want {
			t.Errorf("behind by %s, want %s", got, want)
		}
	}
	if err := b.Status().Err; !errors.Is(err, errUnpublished) {
		t.Errorf("before anything: %v", err)
	}
	broken := errors.New("expected by the test")
	failing := true
	b.client.PrependReactor("create", "resourceslices", func(k8stesting.Action) (bool, runtime.Object, error) {
		return failing, nil, broken
	})
	b.mode("share")
	b.clock.Step(time.Second)
	reconcile(broken)
	b.clock.Step(time.Second)
	behind(2 * time.Second)
	if err := b.Status().Err; !errors.Is(err, broken) {
		t.Errorf("while it fails: %v", err)
	}
	failing = false
	b.Granted()
	b.clock.Step(time.Second)
	reconcile(nil)
	behind(0)
	if err := b.Status().Err; err != nil {
		t.Errorf("when it is published: %v", err)
	}
	reconcile(nil)
	if counts.failed != 1 || !slices.Equal(counts.lags, []time.Duration{3 * time.Second}) {
		t.Errorf("counted %+v", counts)
	}
}

func TestStatusOfDevicesAndOfASwitch(t *testing.T) {
	_, ctx := ktesting.NewTestContext(t)
	b := newBench(t)
	b.mode("share")
	if _, err := b.reconcileNoted(ctx); err != nil {
		t.Fatal(err)
	}
	b.SetHealth(map[string]health.Unhealthy{"GPU-1": {Reason: "lost", Message: "it is lost"}})
	want := []DeviceStatus{
		{Name: "gpu-0-share", Mode: mode.Share, Isolation: "none", IsolationLevel: "none"},
		{Name: "gpu-1-share", Mode: mode.Share, Isolation: "none", IsolationLevel: "none", Unhealthy: "it is lost"},
	}
	if diff := cmp.Diff(want, b.Status().Devices); diff != "" {
		t.Errorf("devices (-want +got):\n%s", diff)
	}
	b.mode("default")
	if _, err := b.reconcileNoted(ctx); err != nil {
		t.Fatal(err)
	}
	b.clock.Step(3 * time.Second)
	if got := b.Status().SwitchWaiting; got != 3*time.Second {
		t.Errorf("it has waited for %s to change its mode, want 3s", got)
	}
	b.mode("share")
	if _, err := b.reconcileNoted(ctx); err != nil {
		t.Fatal(err)
	}
	if got := b.Status().SwitchWaiting; got != 0 {
		t.Errorf("it has waited for %s to change its mode back, want 0", got)
	}
}
