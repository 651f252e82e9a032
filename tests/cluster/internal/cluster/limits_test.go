// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"os"
	"path/filepath"
	"testing"
)

func newLimits(t *testing.T, value string) limits {
	t.Helper()
	l := limits{file: filepath.Join(t.TempDir(), "limit"), record: filepath.Join(t.TempDir(), "record")}
	if err := os.WriteFile(l.file, []byte(value), 0o644); err != nil {
		t.Fatal(err)
	}
	return l
}

func (l limits) expect(t *testing.T, want int) {
	t.Helper()
	if got, err := l.read(); err != nil || got != want {
		t.Errorf("the limit is %d, %v, want %d", got, err, want)
	}
}

func TestLimitIsRaisedAndRestored(t *testing.T) {
	l := newLimits(t, "128\n")
	for range 2 { // Two clusters.
		if err := l.raise("boot"); err != nil {
			t.Fatal(err)
		}
		l.expect(t, inotifyWanted)
	}
	for range 2 {
		if err := l.restore("boot"); err != nil {
			t.Fatal(err)
		}
		l.expect(t, 128)
	}
}

func TestLimitOfOthersIsLeftAlone(t *testing.T) {
	t.Run("enough already", func(t *testing.T) {
		l := newLimits(t, "8192\n")
		if err := l.raise("boot"); err != nil {
			t.Fatal(err)
		}
		if err := l.restore("boot"); err != nil {
			t.Fatal(err)
		}
		l.expect(t, 8192)
	})
	t.Run("set by somebody since", func(t *testing.T) {
		l := newLimits(t, "128\n")
		if err := l.raise("boot"); err != nil {
			t.Fatal(err)
		}
		if err := l.write(4096); err != nil {
			t.Fatal(err)
		}
		if err := l.restore("boot"); err != nil {
			t.Fatal(err)
		}
		l.expect(t, 4096)
	})
	t.Run("raised before the machine was started again", func(t *testing.T) {
		l := newLimits(t, "128\n")
		if err := l.raise("boot"); err != nil {
			t.Fatal(err)
		}
		if err := l.restore("another boot"); err != nil {
			t.Fatal(err)
		}
		l.expect(t, inotifyWanted)
	})
}
