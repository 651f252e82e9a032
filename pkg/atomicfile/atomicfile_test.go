// SPDX-License-Identifier: Apache-2.0

package atomicfile

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
)

// content is what a file has; empty where there is none.
func content(t *testing.T, path string) string {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	return string(data)
}

// Two instances of a program, as during an update, write the same file.
func TestTwoWritersDoNotMix(t *testing.T) {
	for name, waits := range map[string]time.Duration{"one waits": 100 * time.Millisecond, "one gives up": time.Minute} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				path := filepath.Join(t.TempDir(), "file")
				expect.NoError(t, Write(path, []byte("before"), 0o600, false))
				from, to := io.Pipe()
				first := make(chan error)
				go func() { first <- Copy(path, from, 0o600) }()
				if _, err := io.WriteString(to, "first, "); err != nil {
					t.Fatal(err)
				}
				second := make(chan error)
				go func() { second <- Write(path, []byte("second"), 0o600, false) }()
				time.Sleep(waits)
				expect.Equal(t, "before", content(t, path), "while both write, the file has")
				want := "second"
				if waits == time.Minute {
					want = "first, whole"
					expect.Error(t, <-second, "another write of it has not ended after 1s")
				}
				if _, err := io.WriteString(to, "whole"); err != nil {
					t.Fatal(err)
				}
				expect.NoError(t, errors.Join(to.Close(), <-first))
				if waits < time.Minute {
					expect.NoError(t, <-second)
				}
				expect.Equal(t, want, content(t, path), "then it has")
				if left := content(t, path+TempSuffix); left != "" {
					t.Errorf("left behind: %q", left)
				}
			})
		})
	}
}

// What a kill left behind is in nobody's way.
func TestWhatAKillLeftIsReplaced(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	expect.NoError(t, os.WriteFile(path+TempSuffix, []byte("a half that is longer"), 0o600))
	if err := Write(path, []byte("whole"), 0o600, true); err != nil || content(t, path) != "whole" {
		t.Errorf("%q, %v", content(t, path), err)
	}
	if _, err := os.Stat(path + TempSuffix); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("left behind: %v", err)
	}
}
