// SPDX-License-Identifier: Apache-2.0

package bounded

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"
)

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
	if len(calls) == 0 {
		return nil, nil
	}
	r := &round[T]{calls: calls, ask: ask, limit: limit, all: make(chan struct{}), left: len(calls),
		asked: make([]asked[T], len(calls))}
	go func() {
		for i := r.next(); i < len(calls); i = r.next() {
			r.one(i)
		}
	}()
	patience := min(atOnce, limit)
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case <-r.all:
		return r.end(nil)
	case <-ctx.Done():
		return r.end(context.Cause(ctx))
	case <-timer.C:
	}
	for i := r.next(); i < len(calls); i = r.next() {
		go r.one(i)
	}
	timer.Reset(limit - patience)
	select {
	case <-r.all:
		return r.end(nil)
	case <-ctx.Done():
		return r.end(context.Cause(ctx))
	case <-timer.C:
		return r.end(ErrHung)
	}
}

// round is one time that things are asked.
type round[T any] struct {
	calls []*Calls
	ask   func(i int, doing func(what string)) (T, error)
	limit time.Duration
	// all is closed when all have answered.
	all chan struct{}

	mu sync.Mutex
	// taken are those that somebody asks, or is about to, left is how many have not answered.
	taken, left int
	over        bool
	asked       []asked[T]
}

// asked is what came of asking one thing.
type asked[T any] struct {
	what            string
	begun, answered bool
	value           T
	err             error
	// hung is what Calls have in case that it is given up.
	hung hung
}

// next is the number of the thing to be asked next, and asked by the caller then.
func (r *round[T]) next() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	i := r.taken
	r.taken = min(i+1, len(r.calls))
	return i
}

// begin reports whether the thing is to be asked still.
func (r *round[T]) begin(i int) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.asked[i].begun = !r.over
	return !r.over
}

func (r *round[T]) one(i int) {
	if err := r.calls[i].Hung(); err != nil {
		var none T
		r.note(i, none, fmt.Errorf("not tried after %w", err))
		return
	}
	if !r.begin(i) {
		return
	}
	value, err := r.ask(i, func(what string) {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.asked[i].what = what
	})
	r.note(i, value, err)
	r.calls[i].returned(&r.asked[i].hung)
}

func (r *round[T]) note(i int, value T, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	a := &r.asked[i]
	if err != nil && a.what != "" {
		err = wrap(a.what, err)
	}
	a.answered, a.value, a.err = true, value, err
	if r.left--; r.left == 0 {
		close(r.all)
	}
}

// end returns what was answered. What was not is given up, for this cause.
func (r *round[T]) end(cause error) ([]T, []error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.over, r.taken = true, len(r.calls)
	values, errs := make([]T, len(r.calls)), make([]error, len(r.calls))
	for i := range r.asked {
		a := &r.asked[i]
		switch {
		case a.answered:
			values[i], errs[i] = a.value, a.err
		case !a.begun:
			errs[i] = cause
		default:
			errs[i] = fmt.Errorf("%s: %w", a.what, cause)
			if errors.Is(cause, ErrHung) {
				errs[i] = fmt.Errorf("%s: %w from %s (%s)", a.what, cause, r.calls[i].who, r.limit)
			}
			a.hung.err = errs[i]
			r.calls[i].giveUp(&a.hung)
		}
	}
	return values, errs
}
