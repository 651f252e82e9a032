// SPDX-License-Identifier: Apache-2.0

// Package procs has a program that mostly waits use one processor while it does. Go wakes further threads as soon as
// anything is to be done while processors of its scheduler are idle, and these look for more of it: for a program that
// wakes up for a millisecond each second, that is a fifth of what it costs on two cores.
package procs

import (
	"runtime"
	"sync"
	"time"

	"k8s.io/utils/clock"
)

// settle is how long nothing must have kept the program busy before it is left one processor. The change stops all
// goroutines for some microseconds.
const settle = 5 * time.Second

// Busy is told when something takes the processor for long, and done when that has ended. Nil is told nothing.
type Busy func() (done func())

// Begin tells it.
func (b Busy) Begin() (done func()) {
	if b == nil {
		return func() {}
	}
	return b()
}

// Limiter limits the processors of the program that runs. There is one of it.
type Limiter struct {
	clock clock.WithDelayedExecution
	// set is runtime.GOMAXPROCS, all what it was.
	set func(n int) int
	all int

	mu    sync.Mutex
	busy  int
	timer clock.Timer
	// one says that the program has one processor.
	one bool
}

// New returns a Limiter. The program has all processors, and soon one, unless it becomes busy.
func New() *Limiter { return newLimiter(clock.RealClock{}, runtime.GOMAXPROCS) }

func newLimiter(c clock.WithDelayedExecution, set func(n int) int) *Limiter {
	l := &Limiter{clock: c, set: set, all: set(0)}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.rest()
	return l
}

// Busy gives the program all of its processors until done is called, which it is once.
func (l *Limiter) Busy() (done func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.busy++
	l.timer.Stop()
	if l.one {
		l.one = false
		l.set(l.all)
	}
	return func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		if l.busy--; l.busy == 0 {
			l.rest()
		}
	}
}

// rest leaves it one after a while.
func (l *Limiter) rest() {
	l.timer = l.clock.AfterFunc(settle, func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		// It may have become busy while the timer ran out.
		if l.busy == 0 && !l.one {
			l.one = true
			l.set(1)
		}
	})
}
