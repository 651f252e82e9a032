// SPDX-License-Identifier: Apache-2.0

package manager_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/klog/v2/ktesting"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/pkg/controller/manager"
)

const deadline = 60 * time.Second

func options(client kubernetes.Interface) manager.LeaderOptions {
	return manager.LeaderOptions{Client: client, Namespace: "kube-system", Lease: "test",
		LeaseDuration: manager.DefaultLeaseDuration}
}

// replica runs a replica; the function ends it and returns what Run returned.
func replica(ctx context.Context, t *testing.T, o manager.LeaderOptions, identity string,
	lead func(context.Context) error) (end func() error) {
	t.Helper()
	o.Identity = identity
	ctx, cancel := context.WithCancel(ctx)
	returned := make(chan error, 1)
	go func() { returned <- manager.Lead(ctx, o, lead) }()
	t.Cleanup(cancel)
	return func() error {
		cancel()
		select {
		case err := <-returned:
			return err
		case <-time.After(deadline):
			return errors.New("it does not end")
		}
	}
}

func await(t *testing.T, what string, happened <-chan struct{}) {
	t.Helper()
	select {
	case <-happened:
	case <-time.After(deadline):
		t.Fatal("waited in vain until " + what)
	}
}

func TestTheNextLeaderBeginsWhenTheLastHasEnded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, ctx := ktesting.NewTestContext(t)
		o := options(fake.NewClientset())
		firstLeads, firstMayEnd, firstEnded, secondLeads := make(chan struct{}), make(chan struct{}), make(chan struct{}),
			make(chan struct{})
		endFirst := replica(ctx, t, o, "first", func(ctx context.Context) error {
			close(firstLeads)
			<-ctx.Done()
			<-firstMayEnd
			close(firstEnded)
			return nil
		})
		await(t, "the first leads", firstLeads)
		endSecond := replica(ctx, t, o, "second", func(ctx context.Context) error {
			select {
			case <-firstEnded:
			default:
				t.Error("two lead")
			}
			close(secondLeads)
			<-ctx.Done()
			return nil
		})
		firstReturned := make(chan error, 1)
		go func() { firstReturned <- endFirst() }()
		close(firstMayEnd)
		expect.Error(t, <-firstReturned)
		await(t, "the second leads", secondLeads)
		expect.Error(t, endSecond())
	})
}

func TestAReplicaThatNeverLedEnds(t *testing.T) {
	_, ctx := ktesting.NewTestContext(t)
	o := options(fake.NewClientset())
	leads := make(chan struct{})
	replica(ctx, t, o, "first", func(ctx context.Context) error {
		close(leads)
		<-ctx.Done()
		return nil
	})
	await(t, "the first leads", leads)
	end := replica(ctx, t, o, "second", func(context.Context) error {
		t.Error("two lead")
		return nil
	})
	expect.Error(t, end())
}

func TestAnErrorEndsTheReplica(t *testing.T) {
	_, ctx := ktesting.NewTestContext(t)
	o := options(fake.NewClientset())
	o.Identity = "only"
	failure := errors.New("expected by the test")
	expect.ErrorIs(t, manager.Lead(ctx, o, func(context.Context) error { return failure }), failure)
}
