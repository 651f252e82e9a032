package loop_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/klog/v2/ktesting"

	"github.com/gpushare/dra-driver-gpushare/pkg/compat/loop"
)

// run runs a loop until the test ends, and returns the keys that it is called for.
func run(t *testing.T, sync loop.Sync) (*loop.Loop, <-chan string) {
	t.Helper()
	_, ctx := ktesting.NewTestContext(t)
	ctx, cancel := context.WithCancel(ctx)
	called := make(chan string, 100)
	l := loop.New("test", func(ctx context.Context, key string) (time.Duration, error) {
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
		if got != want {
			t.Errorf("called for %q, want %q", got, want)
		}
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
			l.Changed("a")
			wait(t, called, "a")
			wait(t, called, "a")
			l.Changed("b")
			wait(t, called, "b")
		})
	}
}

func TestRunEndsWithTheLastSync(t *testing.T) {
	_, ctx := ktesting.NewTestContext(t)
	ctx, cancel := context.WithCancel(ctx)
	var finished atomic.Bool
	l := loop.New("test", func(ctx context.Context, _ string) (time.Duration, error) {
		cancel()
		<-ctx.Done()
		finished.Store(true)
		return 0, nil
	})
	l.Changed("a")
	l.Run(ctx, 1)
	if !finished.Load() {
		t.Error("Run returned while a Sync was under way")
	}
}
