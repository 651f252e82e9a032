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
	for name, test := range map[string]struct {
		before string
		since  int // what somebody sets; 0 is nothing
		boot   string
		want   int
	}{
		"enough already":                              {before: "8192\n", boot: "boot", want: 8192},
		"set by somebody since":                       {before: "128\n", since: 4096, boot: "boot", want: 4096},
		"raised before the machine was started again": {before: "128\n", boot: "another boot", want: inotifyWanted},
	} {
		t.Run(name, func(t *testing.T) {
			l := newLimits(t, test.before)
			if err := l.raise("boot"); err != nil {
				t.Fatal(err)
			}
			if test.since > 0 {
				if err := l.write(test.since); err != nil {
					t.Fatal(err)
				}
			}
			if err := l.restore(test.boot); err != nil {
				t.Fatal(err)
			}
			l.expect(t, test.want)
		})
	}
}
