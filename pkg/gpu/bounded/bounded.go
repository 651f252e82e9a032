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

	mu   sync.Mutex
	hung *hung
}

// hung is a call that was given up.
type hung struct{ err error }

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
	return c.hung.err
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
	var none T
	if err := c.Hung(); err != nil {
		return none, fmt.Errorf("%s: not tried after %w", what, err)
	}
	type answer struct {
		value T
		err   error
	}
	answers := make(chan answer, 1)
	giveUp := &hung{err: fmt.Errorf("%s: %w from %s (%s)", what, ErrHung, c.who, limit)}
	go func() {
		value, err := call()
		answers <- answer{value, err}
		c.returned(giveUp)
	}()
	timeout := time.NewTimer(limit)
	defer timeout.Stop()
	select {
	case a := <-answers:
		return a.value, wrap(what, a.err)
	case <-ctx.Done():
		giveUp.err = fmt.Errorf("%s: %w", what, context.Cause(ctx))
	case <-timeout.C:
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	select {
	case a := <-answers: // at the last moment
		return a.value, wrap(what, a.err)
	default:
		c.hung = giveUp
		return none, giveUp.err
	}
}

func (c *Calls) giveUp(call *hung) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.hung = call
}

func (c *Calls) returned(call *hung) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.hung == call {
		c.hung = nil
	}
}

func wrap(what string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s: %w", what, err)
}
