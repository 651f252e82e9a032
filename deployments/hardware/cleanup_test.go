// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
)

// What a removal leaves that was killed, ./run down removes: the mark is there, and nothing says that all is.
func TestRemovalThatIsKilled(t *testing.T) {
	killed := errors.New("killed")
	for most := range 6 {
		dir := filepath.Join(t.TempDir(), "work")
		leave(t, dir, mark, "VERSION", "bin/gpubundle", "complete", "lib/ld.so")
		removed := 0
		err := removeUnpacked(dir, func(path string) error {
			if removed == most {
				return killed
			}
			removed++
			return os.RemoveAll(path)
		})
		if _, left := os.Stat(dir); left != nil {
			if err != nil || most < 5 {
				t.Errorf("after %d removals nothing is left, error %v", most, err)
			}
			continue
		}
		if !errors.Is(err, killed) {
			t.Errorf("after %d removals: error %v", most, err)
		}
		if _, err := os.Stat(filepath.Join(dir, mark)); err != nil {
			t.Errorf("after %d removals there is no mark: %v", most, err)
		}
		if _, err := os.Stat(filepath.Join(dir, "complete")); (err == nil) != (most == 0) {
			t.Errorf("after %d removals, complete: %v", most, err)
		}
	}
}
