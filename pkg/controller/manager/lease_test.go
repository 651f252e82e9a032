// SPDX-License-Identifier: Apache-2.0

package manager_test

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/klog/v2/ktesting"
	"k8s.io/utils/ptr"

	"github.com/gpushare/dra-driver-gpushare/internal/apitest"
	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/pkg/controller/manager"
)

func TestLeaseDurations(t *testing.T) {
	for _, right := range []string{"5s", "15s", "1m30s", "3m"} {
		d, err := time.ParseDuration(right)
		expect.NoError(t, err)
		if err := manager.CheckLeaseDuration(d); err != nil {
			t.Errorf("%s: %v", right, err)
		}
	}
	for wrong, why := range map[string]string{
		"-15s": "API server is slow", "0s": "API server is slow", "4.999s": "API server is slow",
		"5.5s":   "fractions of a second",
		"3m0.1s": "when a leader is killed", "1h0m0s": "when a leader is killed",
	} {
		d, err := time.ParseDuration(wrong)
		expect.NoError(t, err)
		err = manager.CheckLeaseDuration(d)
		for _, said := range []string{"a lease of " + wrong, "from 5s to 3m0s", why} {
			if err == nil || !strings.Contains(err.Error(), said) {
				t.Errorf("%s: error %v, want one that says %q", wrong, err, said)
			}
		}
		o := options(fake.NewClientset())
		o.Identity, o.LeaseDuration = "only", d
		if led := manager.Lead(t.Context(), o, nil); led == nil || led.Error() != err.Error() {
			t.Errorf("%s: a replica says %v, want %v", wrong, led, err)
		}
	}
}

// However long the lease, a leader that is cut off from the API server ends before it has
// run out, and the next begins soon after. Until then the leader writes as often as is said.
func TestALeaderIsCutOff(t *testing.T) {
	for _, test := range []struct{ lease, renewDeadline, retryPeriod time.Duration }{
		{5 * time.Second, 3333 * time.Millisecond, 666 * time.Millisecond},
		{15 * time.Second, 10 * time.Second, 2 * time.Second},
		{3 * time.Minute, 2 * time.Minute, 24 * time.Second},
	} {
		t.Run(test.lease.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				_, ctx := ktesting.NewTestContext(t)
				server := newLeases()
				o := options(server.client)
				o.LeaseDuration = test.lease
				firstLeads, secondLeads := make(chan struct{}), make(chan struct{})
				firstEnds := make(chan time.Time, 1)
				endFirst := replica(ctx, t, o, "first", func(ctx context.Context) error {
					close(firstLeads)
					<-ctx.Done()
					firstEnds <- time.Now()
					return nil
				})
				<-firstLeads
				endSecond := replica(ctx, t, o, "second", func(ctx context.Context) error {
					close(secondLeads)
					<-ctx.Done()
					return nil
				})
				const times = 20
				synctest.Wait()
				before := server.writes.Load()
				time.Sleep(times * test.retryPeriod)
				synctest.Wait()
				expect.Equal(t, times, server.writes.Load()-before, "writes in %s", times*test.retryPeriod)
				expect.Equal(t, test.lease, time.Duration(server.seconds.Load())*time.Second, "the Lease lasts")

				server.cut.Store(true)
				renewed := time.Now()
				expect.Equal(t, test.retryPeriod+test.renewDeadline, (<-firstEnds).Sub(renewed),
					"the first ends, after it has renewed the lease, in")
				<-secondLeads
				// Each look of the second comes 2.2 times the period after the last one at most.
				most := test.lease + 2*22*test.retryPeriod/10
				if begins := time.Since(renewed); begins < test.lease || begins > most {
					t.Errorf("the second begins %s after the first has renewed the lease, want %s to %s", begins, test.lease, most)
				}
				err := endFirst()
				if want := "could not be renewed for " + test.renewDeadline.String(); err == nil ||
					!strings.Contains(err.Error(), want) {
					t.Errorf("the first: %v, want %q", err, want)
				}
				expect.Error(t, endSecond())
			})
		})
	}
}

// leases is an API server that refuses, once it is cut, what the first replica writes.
type leases struct {
	client  *fake.Clientset
	cut     atomic.Bool
	writes  atomic.Int32
	seconds atomic.Int32
}

func newLeases() *leases {
	l := &leases{client: fake.NewClientset()}
	apitest.Answer(l.client, "update", "leases", func(action clienttesting.Action) (bool, runtime.Object, error) {
		spec := action.(clienttesting.UpdateAction).GetObject().(*coordinationv1.Lease).Spec
		// To give it back, too, is to write.
		if l.cut.Load() && ptr.Deref(spec.HolderIdentity, "") != "second" {
			return true, nil, errors.New("expected by the test")
		}
		l.writes.Add(1)
		l.seconds.Store(ptr.Deref(spec.LeaseDurationSeconds, 0))
		return false, nil, nil
	})
	return l
}
