// SPDX-License-Identifier: Apache-2.0

package beat

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/utils/clock"
)

// What has several intervals, and begins at any time, is done at the same moments.
func TestUntil(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		moments, calls := map[time.Time]bool{}, make(chan time.Time, 1000)
		for begin, interval := range map[time.Duration]time.Duration{
			300 * time.Millisecond: time.Second, 800 * time.Millisecond: 2 * time.Second,
			1700 * time.Millisecond: 10 * time.Second,
		} {
			go func() {
				time.Sleep(begin)
				Until(ctx, clock.RealClock{}, interval, func(context.Context) { calls <- time.Now() })
			}()
		}
		time.Sleep(20*time.Second + 500*time.Millisecond)
		cancel()
		synctest.Wait()
		close(calls)
		count := 0
		for at := range calls {
			moments[at] = true
			count++
		}
		// Each begins at a time of its own.
		if len(moments) != 3+20 || count != 3+20+10+2 {
			t.Errorf("%d calls at %d moments, want %d at %d", count, len(moments), 3+20+10+2, 3+20)
		}
	})
}
