// SPDX-License-Identifier: Apache-2.0

package harness

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
)

// Timeout is how long a condition may take to come about. Passing tests need a
// fraction of it, on a machine of a fifth of the speed, too; it is what a failing one costs. It
// covers what others decide: a kubelet tries a claim again whose preparation failed after up to
// a minute and a half, a DaemonSet's pods are replaced one after the other.
const Timeout = 10 * time.Minute

// Patience is how long Eventually waits. A suite that has minutes for all of its tests waits less than Timeout.
var Patience = Timeout

const pollInterval = 100 * time.Millisecond

// Context is the test's or, when that has ended, for what is cleaned up, one that does not: what
// puts things back waits as a test does.
func Context(t *testing.T) context.Context {
	if t.Context().Err() != nil {
		return context.WithoutCancel(t.Context())
	}
	return t.Context()
}

// Eventually waits until the condition returns nil, and fails the test with its
// last error where that takes longer than Patience.
func Eventually(t *testing.T, what string, condition func(ctx context.Context) error) {
	t.Helper()
	Within(t, Patience, what, condition)
}

// Within is Eventually for what may take longer, or has to be there sooner.
func Within(t *testing.T, timeout time.Duration, what string, condition func(ctx context.Context) error) {
	t.Helper()
	began := time.Now()
	err := Poll(Context(t), timeout, condition)
	waits.add(t, time.Since(began), what)
	expect.NoErrorf(t, err, "waited for %s", what)
}

// waits are the longest ones of the tests, each of which says at its end what its was: the
// attribute "waited", which `go test -json` tells as any other.
var waits longestWaits

// whatMost is how much of what was waited for is said.
const whatMost = 120

type longestWaits struct {
	mu     sync.Mutex
	byTest map[*testing.T]longestWait
}

type longestWait struct {
	took time.Duration
	what string
}

func (w longestWait) String() string {
	// An attribute takes no line feeds.
	what := []rune(strings.Join(strings.Fields(w.what), " "))
	return fmt.Sprintf("%.1fs for %s", w.took.Seconds(), string(what[:min(len(what), whatMost)]))
}

func (l *longestWaits) add(t *testing.T, took time.Duration, what string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.byTest == nil {
		l.byTest = map[*testing.T]longestWait{}
	}
	before, known := l.byTest[t]
	if !known || took > before.took {
		l.byTest[t] = longestWait{took: took, what: what}
	}
	// What puts things back waits, too, and mostly after this: it is not told.
	if !known {
		t.Cleanup(func() { t.Attr("waited", l.of(t).String()) })
	}
}

func (l *longestWaits) of(t *testing.T) longestWait {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.byTest[t]
}

// callSlack is how much longer than the time of a poll its last call may take.
const callSlack = 10 * time.Second

// Poll calls the condition until it returns nil or the time is over; the error
// is then the condition's last.
func Poll(ctx context.Context, timeout time.Duration, condition func(ctx context.Context) error) error {
	// Were the calls bound by the time itself, the last one would fail of that and
	// hide what was waited for.
	callCtx, cancel := context.WithTimeout(ctx, timeout+callSlack)
	defer cancel()
	var last error
	start := time.Now()
	err := wait.PollUntilContextTimeout(ctx, pollInterval, timeout, true, func(context.Context) (bool, error) {
		last = condition(callCtx)
		return last == nil, nil
	})
	if err == nil {
		return nil
	}
	return fmt.Errorf("not within %s: %w", time.Since(start).Round(time.Second), errors.Join(last, context.Cause(ctx)))
}
