// SPDX-License-Identifier: Apache-2.0

package harness

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
)

// Timeout is how long a condition may take to come about. Passing tests need a
// fraction of it, on a machine with much else to do, too; it is what a failing one costs.
const Timeout = 2 * time.Minute

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
// last error where that takes longer than Timeout.
func Eventually(t *testing.T, what string, condition func(ctx context.Context) error) {
	t.Helper()
	if err := Poll(Context(t), Timeout, condition); err != nil {
		t.Fatalf("waited for %s: %v", what, err)
	}
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
