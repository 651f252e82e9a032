// SPDX-License-Identifier: Apache-2.0

package manager

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
)

// LeaderOptions say who leads what.
type LeaderOptions struct {
	Client kubernetes.Interface
	// Namespace and Lease are where the replicas find each other.
	Namespace, Lease string
	// Identity tells the replica from all others.
	Identity string
	// LeaseDuration is how long a leader that is heard of no more stays one:
	// see CheckLeaseDuration.
	LeaseDuration time.Duration
	// Watchdog comes to know whether the replica that leads renews the lease; nil for
	// nobody.
	Watchdog *leaderelection.HealthzAdaptor
}

// Lead waits until this replica leads, and then runs lead until the context ends.
// The next leader begins when lead has returned, so that there are never two; only
// where this replica is cut off from the API server it begins without. That, like
// an error of lead, is returned: the process should end, and be started again.
func Lead(ctx context.Context, o LeaderOptions, lead func(ctx context.Context) error) error {
	if err := CheckLeaseDuration(o.LeaseDuration); err != nil {
		return err
	}
	renewDeadline, retryPeriod := renewal(o.LeaseDuration)
	// The lease is given back when lead has returned, not when it is told to.
	elect, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	var leading atomic.Bool
	led := make(chan error, 1)
	elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Name: o.Lease,
		Lock: &resourcelock.LeaseLock{
			LeaseMeta:  metav1.ObjectMeta{Namespace: o.Namespace, Name: o.Lease},
			Client:     o.Client.CoordinationV1(),
			LockConfig: resourcelock.ResourceLockConfig{Identity: o.Identity},
		},
		LeaseDuration: o.LeaseDuration, RenewDeadline: renewDeadline, RetryPeriod: retryPeriod,
		ReleaseOnCancel: true, WatchDog: o.Watchdog,
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: func(work context.Context) {
				leading.Store(true)
				work, cancel := context.WithCancel(work)
				defer cancel()
				defer context.AfterFunc(ctx, cancel)()
				led <- lead(work)
				stop()
			},
			OnStoppedLeading: func() {},
		},
	})
	if err != nil {
		return fmt.Errorf("prepare the election of a leader by lease %s/%s: %w", o.Namespace, o.Lease, err)
	}
	defer context.AfterFunc(ctx, func() {
		if !leading.Load() {
			stop()
		}
	})()
	elector.Run(elect)
	select {
	case err = <-led:
	case <-ctx.Done():
	}
	if err != nil || ctx.Err() != nil {
		return err
	}
	return fmt.Errorf("lease %s/%s could not be renewed for %s: another replica goes on", o.Namespace, o.Lease,
		renewDeadline)
}

// DefaultLeaseDuration is Kubernetes' own for its controllers.
const DefaultLeaseDuration = 15 * time.Second

// Three seconds without an answer, as while etcd elects, must not end a leader; and between
// the end of one and the start of the next lies more than a second, by which client-go's
// replicas may believe a lease to be older than it is: they compare its times by whole
// seconds. Alerts say after five minutes that nobody leads.
const (
	minLeaseDuration = 5 * time.Second
	maxLeaseDuration = 3 * time.Minute
)

// CheckLeaseDuration refuses durations that Lead does not take.
func CheckLeaseDuration(d time.Duration) error {
	why := ""
	switch {
	case d < minLeaseDuration:
		why = "with a shorter one a leader would end whenever the API server is slow"
	case d > maxLeaseDuration:
		why = "with a longer one nobody would do the work for as long when a leader is killed"
	case d%time.Second != 0:
		why = "a Lease has no fractions of a second"
	default:
		return nil
	}
	return fmt.Errorf("a lease of %s: give whole seconds from %s to %s: %s", d, minLeaseDuration, maxLeaseDuration, why)
}

// renewal is for how long a leader tries to renew a lease, and how often, in the ratio of
// Kubernetes' defaults, 10 s and 2 s of 15 s.
func renewal(lease time.Duration) (deadline, period time.Duration) {
	return (lease * 10 / 15).Truncate(time.Millisecond), (lease * 2 / 15).Truncate(time.Millisecond)
}
