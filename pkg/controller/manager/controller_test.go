// SPDX-License-Identifier: Apache-2.0

package manager_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/klog/v2"
	"k8s.io/klog/v2/ktesting"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/pkg/controller/manager"
)

// run runs a controller until the test ends, and returns the keys that it is called for.
func run(t *testing.T, sync manager.Reconcile) (*manager.Controller, <-chan string) {
	t.Helper()
	_, ctx := ktesting.NewTestContext(t)
	ctx, cancel := context.WithCancel(ctx)
	called := make(chan string, 100)
	l := manager.NewController("test", func(ctx context.Context, key string) (time.Duration, error) {
		called <- key
		return sync(ctx, key)
	})
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		l.Run(ctx, 2)
	}()
	t.Cleanup(func() {
		cancel()
		<-ended
	})
	return l, called
}

func wait(t *testing.T, called <-chan string, want string) {
	t.Helper()
	select {
	case got := <-called:
		expect.Equal(t, want, got, "called for")
	case <-time.After(30 * time.Second):
		t.Fatalf("not called for %q", want)
	}
}

func TestCalledAgain(t *testing.T) {
	for name, first := range map[string]func() (time.Duration, error){
		"after an error":   func() (time.Duration, error) { return 0, errors.New("expected by the test") },
		"after a panic":    func() (time.Duration, error) { panic("expected by the test") },
		"when it wants to": func() (time.Duration, error) { return time.Millisecond, nil },
	} {
		t.Run(name, func(t *testing.T) {
			var calls atomic.Int32
			l, called := run(t, func(context.Context, string) (time.Duration, error) {
				if calls.Add(1) == 1 {
					return first()
				}
				return 0, nil
			})
			l.Enqueue("a")
			wait(t, called, "a")
			wait(t, called, "a")
			l.Enqueue("b")
			wait(t, called, "b")
		})
	}
}

func TestRunEndsWithTheLastSync(t *testing.T) {
	_, ctx := ktesting.NewTestContext(t)
	ctx, cancel := context.WithCancel(ctx)
	var finished atomic.Bool
	l := manager.NewController("test", func(ctx context.Context, _ string) (time.Duration, error) {
		cancel()
		<-ctx.Done()
		finished.Store(true)
		return 0, nil
	})
	l.Enqueue("a")
	l.Run(ctx, 1)
	expect.Equal(t, true, finished.Load(), "a Reconcile that was under way ended before Run returned")
}

func TestPanicIsLoggedWithItsStack(t *testing.T) {
	logger := ktesting.NewLogger(t, ktesting.NewConfig(ktesting.BufferLogs(true)))
	ctx, cancel := context.WithCancel(klog.NewContext(t.Context(), logger))
	l := manager.NewController("test", func(context.Context, string) (time.Duration, error) {
		defer cancel()
		return panics()
	})
	l.Enqueue("a")
	l.Run(ctx, 1)
	buffered, ok := logger.GetSink().(ktesting.Underlier)
	if !ok {
		t.Fatalf("the log is a %T", logger.GetSink())
	}
	log := buffered.GetBuffer().String()
	expect.Says(t, log, "expected by the test", "manager_test.panics")
}

func panics() (time.Duration, error) { panic("expected by the test") }

// order runs a controller with one worker until it has done all of the keys, and returns
// the order in which it was called.
func order(t *testing.T, keys []string, sync manager.Reconcile) []string {
	t.Helper()
	_, ctx := ktesting.NewTestContext(t)
	ctx, cancel := context.WithCancel(ctx)
	var called []string
	l := manager.NewController("test", func(ctx context.Context, key string) (time.Duration, error) {
		if called = append(called, key); len(called) == len(keys) {
			defer cancel()
		}
		return sync(ctx, key)
	})
	for _, key := range keys {
		l.Enqueue(key)
	}
	l.Run(ctx, 1)
	return called
}

func TestNamespaceWithManyKeysKeepsNoOtherWaiting(t *testing.T) {
	var keys []string
	for i := range 2000 {
		keys = append(keys, fmt.Sprintf("loud/%d", i))
	}
	keys = append(keys, "quiet/a", "silent/a", "quiet/b")
	called := order(t, keys, func(context.Context, string) (time.Duration, error) { return 0, nil })
	for _, key := range []string{"quiet/a", "silent/a", "quiet/b"} {
		if i := slices.Index(called, key); i > 10 {
			t.Errorf("%s was called for after %d others", key, i)
		}
	}
	if i := slices.Index(called, "loud/0"); i != 0 || slices.Index(called, "loud/5") > 10 {
		t.Errorf("the keys of the namespace that came first are not among the first: %v", called[:12])
	}
}

// Not the number of keys counts but the time that they take.
func TestNamespaceWithExpensiveKeysGetsNoMoreTimeThanOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var keys []string
		for i := range 10 {
			keys = append(keys, fmt.Sprintf("loud/%d", i))
		}
		for i := range 100 {
			keys = append(keys, fmt.Sprintf("quiet/%d", i))
		}
		called := order(t, keys, func(_ context.Context, key string) (time.Duration, error) {
			took := 10 * time.Millisecond
			if strings.HasPrefix(key, "loud/") {
				took = time.Second
			}
			time.Sleep(took)
			return 0, nil
		})
		if i := slices.Index(called, "quiet/98"); i > 101 {
			t.Errorf("99 keys of 10 ms each waited for %d of 1 s each", i-98)
		}
	})
}
