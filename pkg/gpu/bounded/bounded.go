// SPDX-License-Identifier: Apache-2.0

// Package bounded makes calls that may never return, and waits for each of them
// only so long.
package bounded

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"
)

// ErrHung is the cause of every error about a call that did not return in time.
var ErrHung = errors.New("no answer in time")

// Calls makes calls on one thing, such as a GPU. A call that hangs keeps a
// goroutine, and if it hangs in C a thread, until it returns, if ever. No other is
// made until then: what it waits for, the next one would wait for too. So one
// thing costs one thread, however often it is asked.
//
// It is used by one goroutine at a time.
type Calls struct {
	timeout time.Duration
	// who does not answer, for messages.
	who string

	mu sync.Mutex
	// hung is the error of the call that was given up and has not returned yet; nil if there is none.
	hung *error
}

// New returns Calls that wait for each call as long as timeout. who is whom they
// wait for, as messages name it.
func New(who string, timeout time.Duration) *Calls { return &Calls{who: who, timeout: timeout} }

// Hung is the error of the call that was given up and has not returned yet; nil
// if there is none.
func (c *Calls) Hung() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.hung == nil {
		return nil
	}
	return *c.hung
}

// Try makes one call. Its errors begin with what was tried; those of a call that
// did not return, or was not made since another has not, are ErrHung.
func Try[T any](ctx context.Context, c *Calls, what string, call func() (T, error)) (T, error) {
	return TryWithin(ctx, c, c.timeout, what, call)
}

// TryWithin is Try with a timeout of its own. A call that has not returned when the context
// ends is given up, too.
func TryWithin[T any](
	ctx context.Context, c *Calls, limit time.Duration, what string, call func() (T, error),
) (T, error) {
	t := newTry(c, limit, what, func(func(string)) (T, error) { return call() })
	ctx, cancel := context.WithTimeoutCause(ctx, limit, ErrHung)
	defer cancel()
	if t.begin() {
		go t.run()
	}
	return t.wait(ctx)
}

// atOnce is for how long things are asked one after the other, before the rest are asked side by side.
const atOnce = 100 * time.Millisecond

// Each asks several things, by a call on each of them, and waits for all of these no longer than limit.
// ask gets the number of the thing among calls, and says by doing what it asks for next, which its errors
// begin with. The answers and errors are in the order of calls. A thing with a call that has not returned is
// not asked.
//
// As long as things answer at once, one goroutine asks them in turn: to start one for each, and to wake the
// processors for them, takes longer than the answers do. One that hangs delays the others by a moment.
func Each[T any](
	ctx context.Context, calls []*Calls, limit time.Duration, ask func(i int, doing func(what string)) (T, error),
) ([]T, []error) {
	tries := make([]*try[T], len(calls))
	for i, c := range calls {
		tries[i] = newTry(c, limit, "", func(doing func(string)) (T, error) { return ask(i, doing) })
	}
	ctx, cancel := context.WithTimeoutCause(ctx, limit, ErrHung)
	defer cancel()
	go func() {
		for _, t := range tries {
			if t.begin() {
				t.run()
			}
		}
	}()
	rest := time.AfterFunc(atOnce, func() {
		for _, t := range tries {
			if t.begin() {
				go t.run()
			}
		}
	})
	defer rest.Stop()
	values, errs := make([]T, len(calls)), make([]error, len(calls))
	for i, t := range tries {
		values[i], errs[i] = t.wait(ctx)
	}
	return values, errs
}

// try is one call, for one who waits for it.
type try[T any] struct {
	*Calls
	limit   time.Duration
	call    func(doing func(what string)) (T, error)
	answers chan answer[T]

	// begun says that somebody makes the call, or that nobody is to any more; what is done in it now, and failure is the
	// error in case that it is given up. The lock of Calls is for them, too.
	begun   bool
	what    string
	failure error
}

type answer[T any] struct {
	value T
	err   error
}

func newTry[T any](c *Calls, limit time.Duration, what string, call func(doing func(string)) (T, error)) *try[T] {
	return &try[T]{Calls: c, limit: limit, what: what, call: call, answers: make(chan answer[T], 1)}
}

// begin reports whether the caller is to make the call: nobody else does, and no other one hangs.
func (t *try[T]) begin() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.begun {
		return false
	}
	t.begun = true
	if t.hung != nil {
		t.answers <- answer[T]{err: fmt.Errorf("not tried after %w", *t.hung)}
		return false
	}
	return true
}

// run makes the call.
func (t *try[T]) run() {
	value, err := t.call(func(what string) {
		t.mu.Lock()
		defer t.mu.Unlock()
		t.what = what
	})
	t.answers <- answer[T]{value, err}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.hung == &t.failure {
		t.hung = nil
	}
}

// wait returns what was answered. What was not when the context ends is given up.
func (t *try[T]) wait(ctx context.Context) (value T, err error) {
	select {
	case a := <-t.answers:
		return a.value, t.about(a.err)
	case <-ctx.Done():
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	cause := context.Cause(ctx)
	select {
	case a := <-t.answers: // at the last moment
		return a.value, t.about(a.err)
	default:
		if !t.begun {
			t.begun = true
			return value, cause
		}
	}
	if errors.Is(cause, ErrHung) {
		cause = fmt.Errorf("%w from %s (%s)", cause, t.who, t.limit)
	}
	t.failure = t.about(cause)
	t.hung = &t.failure
	return value, t.failure
}

// about is an error that says what was tried.
func (t *try[T]) about(err error) error {
	if err == nil || t.what == "" {
		return err
	}
	return fmt.Errorf("%s: %w", t.what, err)
}
