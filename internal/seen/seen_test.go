// SPDX-License-Identifier: Apache-2.0

package seen_test

import (
	"sync"
	"testing"
	"time"

	clocktesting "k8s.io/utils/clock/testing"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/internal/seen"
)

func TestSince(t *testing.T) {
	clock := clocktesting.NewFakePassiveClock(time.Unix(1000, 0))
	s := seen.NewSince[string](clock)
	step := func(d time.Duration) { clock.SetTime(clock.Now().Add(d)) }
	want := func(key string, want time.Duration) {
		t.Helper()
		expect.Equal(t, want, s.For(key), "%s has been seen for", key)
	}
	want("a", 0)
	step(time.Minute)
	want("a", time.Minute)
	want("b", 0)
	step(time.Second)
	want("a", time.Minute+time.Second)
	want("b", time.Second)
	s.Begin("a")
	step(time.Second)
	want("a", time.Second)
	s.Forget("b")
	s.Forget("nobody")
	want("b", 0)
}

// Workers and handlers of a controller use one.
func TestSinceIsForSeveral(t *testing.T) {
	s := seen.NewSince[int](clocktesting.NewFakePassiveClock(time.Unix(0, 0)))
	var wg sync.WaitGroup
	for i := range 4 {
		wg.Go(func() {
			s.Begin(i % 2)
			s.For(i % 2)
			s.Forget(i % 2)
		})
	}
	wg.Wait()
	expect.Equal(t, 0, s.For(0), "it has been seen for")
}
