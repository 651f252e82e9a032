// SPDX-License-Identifier: Apache-2.0

// Package testneeds decides what becomes of a test on a machine that lacks something for it: a
// developer's leaves the test out and says so, CI fails it, for a test that CI leaves out proves
// nothing and nobody sees that.
package testneeds

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// CIEnv is set to "true" where the machine has all that tests need.
const CIEnv = "CI"

// Skipf skips the test for the reason, or fails it for that where CI=true.
func Skipf(t testing.TB, reason string, args ...any) {
	t.Helper()
	if os.Getenv(CIEnv) == "true" {
		t.Fatalf("what this test needs is there where "+CIEnv+"=true: "+reason, args...)
	} else {
		t.Skipf(reason, args...)
	}
}

// Root is for a test that only root can run, and says for what.
func Root(t testing.TB, what string) {
	t.Helper()
	if os.Geteuid() != 0 {
		Skipf(t, "%s: run as root", what)
	}
}

// DeviceNodes is for a test that makes device nodes, which root may in most places.
func DeviceNodes(t testing.TB) {
	t.Helper()
	probe := filepath.Join(t.TempDir(), "null")
	if err := unix.Mknod(probe, unix.S_IFCHR|0o600, int(unix.Mkdev(1, 3))); err != nil {
		Skipf(t, "making a device node: %v: run as root", err)
	}
}

// Time is for a test that searches long and runs nothing beside that. `go test -short` leaves it out, also in CI: lane
// race runs so, to which such a test has nothing to show, and lane unit runs it.
func Time(t testing.TB) {
	t.Helper()
	if testing.Short() {
		t.Skip("a long search, and nothing beside it")
	}
}
