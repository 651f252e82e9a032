// SPDX-License-Identifier: Apache-2.0

//go:build !small

package expect

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// The archive of deployments/hardware is linked without go-cmp: see tests/harness.

// Equal fails the test, and lets it go on, if the values differ, and prints how. The format says whose values they are.
func Equal[T any](t testing.TB, want, got T, format string, args ...any) {
	t.Helper()
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf(format+" (-want +got):\n%s", append(args, diff)...)
	}
}

// Diff returns an error that prints how the values differ, where they do: for what need not hold yet.
func Diff[T any](want, got T) error {
	if diff := cmp.Diff(want, got); diff != "" {
		return fmt.Errorf("(-want +got):\n%s", diff)
	}
	return nil
}
