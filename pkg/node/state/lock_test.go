// SPDX-License-Identifier: Apache-2.0

package state

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
)

// lockers are the ways to wait for a lock that somebody else holds.
func lockers(s *Store) map[string]func(context.Context) (func(), error) {
	return map[string]func(context.Context) (func(), error){
		"claim": func(ctx context.Context) (func(), error) { return s.LockClaim(ctx, "a") },
		"node":  s.LockNode,
	}
}

// The kubelet gives up on a call and makes another one: what waited for the first must
// not stay, be it behind a goroutine or behind another instance.
func TestWaitingForALockEndsWithItsContext(t *testing.T) {
	s, dir := open(t)
	elsewhere := openAgain(t, dir)
	for where, holder := range map[string]*Store{"in this process": s, "in another process": elsewhere} {
		for what, lock := range lockers(s) {
			t.Run(what+" locked "+where, func(t *testing.T) {
				unlock, err := lockers(holder)[what](t.Context())
				expect.NoError(t, err)
				gaveUp := errors.New("the kubelet gave up")
				ctx, cancel := context.WithCancelCause(t.Context())
				done := make(chan error, 1)
				go func() {
					_, err := lock(ctx)
					done <- err
				}()
				cancel(gaveUp)
				expect.ErrorIs(t, <-done, gaveUp)
				if len(s.queues.byOffset) > 1 {
					t.Errorf("%d queues are left", len(s.queues.byOffset))
				}
				unlock()
				unlock, err = lock(t.Context())
				expect.NoErrorf(t, err, "the lock is lost to the one that gave up")
				unlock()
			})
		}
	}
	expect.Equal(t, 0, len(s.queues.byOffset), "queues are left of locks that nobody holds")
}

// Those who wait in one process are handed the lock; nobody looks again after a while.
func TestWaitingInOneProcessDoesNotPoll(t *testing.T) {
	s, _ := open(t)
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		unlock, err := s.LockClaim(t.Context(), "a")
		expect.NoError(t, err)
		var wg sync.WaitGroup
		for range 16 {
			wg.Go(func() {
				unlock, err := s.LockClaim(t.Context(), "a")
				if err != nil {
					t.Error(err)
					return
				}
				unlock()
			})
		}
		synctest.Wait()
		unlock()
		wg.Wait()
		expect.Equal(t, 0, time.Since(start), "a goroutine polls for a lock that another one holds: it has it later by")
	})
}
