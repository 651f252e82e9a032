// SPDX-License-Identifier: Apache-2.0

package bounded

import (
	"context"
	"errors"
	"fmt"
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

func callsOn(count int) []*Calls {
	var out []*Calls
	for range count {
		out = append(out, New("NVML", timeout))
	}
	return out
}

// Things that answer at once are asked in turn, and no goroutine is left.
func TestEachInTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var atOnce, most atomic.Int32
		broken := errors.New("broken")
		values, errs := Each(t.Context(), callsOn(8), timeout, func(i int, doing func(string)) (int, error) {
			most.Store(max(most.Load(), atOnce.Add(1)))
			defer atOnce.Add(-1)
			doing("counting")
			if i == 3 {
				return 0, broken
			}
			return 10 * i, nil
		})
		expect.Equal(t, []int{0, 10, 20, 0, 40, 50, 60, 70}, values, "values")
		for i, err := range errs {
			if (i == 3) != errors.Is(err, broken) || err != nil && err.Error() != "counting: broken" {
				t.Errorf("%d: error %v", i, err)
			}
		}
		expect.Equal(t, 1, most.Load(), "asked at a time")
	})
}

// What hangs is given up after the limit, and keeps nothing from the others, however many hang. It is
// not asked again until its call has returned.
func TestEachWithSomeThatHang(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		calls, release := callsOn(8), make(chan struct{})
		var made atomic.Int32
		ask := func() ([]int, string) {
			values, errs := Each(t.Context(), calls, timeout, func(i int, doing func(string)) (int, error) {
				made.Add(1)
				doing("looking")
				doing("counting")
				if i%3 == 0 {
					<-release
				}
				return i, nil
			})
			said := make([]string, 0, len(errs))
			for i, err := range errs {
				if err != nil {
					said = append(said, fmt.Sprint(i, " ", err))
					expect.ErrorIs(t, err, ErrHung)
				}
			}
			return values, strings.Join(said, ", ")
		}
		start := time.Now()
		values, said := ask()
		expect.Equal(t, timeout, time.Since(start), "it took")
		const hung = "counting: no answer in time from NVML (1s)"
		expect.Equal(t, "0 "+hung+", 3 "+hung+", 6 "+hung, said, "errors")
		expect.Equal(t, []int{0, 1, 2, 0, 4, 5, 0, 7}, values, "values")
		start = time.Now()
		values, said = ask()
		if took := time.Since(start); took != 0 || made.Load() != 8+5 || strings.Count(said, "not tried after "+hung) != 3 {
			t.Errorf("again: %v, %s, after %s and %d calls", values, said, took, made.Load())
		}
		close(release)
		synctest.Wait()
		for i, c := range calls {
			expect.NoErrorf(t, c.Hung(), "%d hangs after it returned", i)
		}
		if values, said = ask(); said != "" || values[6] != 6 {
			t.Errorf("at last: %v, %s", values, said)
		}
	})
}

func TestEachEndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		calls, release := callsOn(2), make(chan struct{})
		time.AfterFunc(time.Millisecond, cancel)
		_, errs := Each(ctx, calls, timeout, func(int, func(string)) (int, error) { <-release; return 0, nil })
		for _, err := range errs {
			expect.ErrorIs(t, err, context.Canceled)
		}
		if calls[0].Hung() == nil || calls[1].Hung() != nil {
			t.Errorf("hung: %v, %v; want the first alone, which was asked", calls[0].Hung(), calls[1].Hung())
		}
		close(release)
		synctest.Wait()
		expect.NoErrorf(t, calls[0].Hung(), "hung after it returned")
	})
}
