// SPDX-License-Identifier: Apache-2.0

package bounded

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
)

const timeout = time.Second

// A call that hangs costs one goroutine, however often it is repeated, and what
// it was made on is asked again as soon as it has returned.
func TestWhatHangsIsNotAskedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := New("NVML", timeout)
		release := make(chan struct{})
		var made atomic.Int32
		ask := func() (int, error) {
			return Try(t.Context(), c, "reading the name", func() (int, error) {
				made.Add(1)
				<-release
				return 7, nil
			})
		}
		_, err := ask()
		if !errors.Is(err, ErrHung) || !strings.Contains(err.Error(), "reading the name: no answer in time from NVML (1s)") {
			t.Fatalf("error %v, want one about the name", err)
		}
		for range 1000 {
			if _, err := ask(); !errors.Is(err, ErrHung) || !strings.Contains(err.Error(), "not tried after") {
				t.Fatalf("error %v, want that it was not tried", err)
			}
		}
		expect.Equal(t, 1, made.Load(), "calls were made")
		close(release)
		synctest.Wait()
		expect.NoErrorf(t, c.Hung(), "hung after it returned")
		if v, err := ask(); v != 7 || err != nil {
			t.Errorf("asked again: %v, %v", v, err)
		}
	})
}

func TestErrorsSayWhatWasTried(t *testing.T) {
	cause := errors.New("broken")
	_, err := Try(t.Context(), New("NVML", timeout), "counting", func() (int, error) { return 1, cause })
	if !errors.Is(err, cause) || err.Error() != "counting: broken" {
		t.Errorf("error %v", err)
	}
}

// What is called on must not be torn down under a call that nobody waits for any more.
func TestTryEndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		release := make(chan struct{})
		c := New("NVML", timeout)
		_, err := Try(ctx, c, "counting", func() (int, error) { <-release; return 0, nil })
		expect.ErrorIs(t, err, context.Canceled)
		expect.ErrorIs(t, c.Hung(), context.Canceled)
		close(release)
		synctest.Wait()
		expect.NoErrorf(t, c.Hung(), "hung after it returned")
	})
}
