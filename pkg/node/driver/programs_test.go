// SPDX-License-Identifier: Apache-2.0

package driver

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
)

// TestInstallPrograms: what the container runtime starts is the image's program, whatever
// was there before, and is not touched where it is that already.
func TestInstallPrograms(t *testing.T) {
	image, dir := t.TempDir(), t.TempDir()
	source := filepath.Join(image, "hook")
	content := strings.Repeat("a program, longer than one piece of the comparison\n", 3000)
	expect.NoError(t, os.WriteFile(source, []byte(content), 0o755))
	target := InstalledProgram(source, dir)
	for _, test := range []struct {
		name   string
		before func() error
		stays  bool
	}{
		{"nothing there", func() error { return nil }, false},
		{"there already", func() error { return nil }, true},
		{"another of the same size", func() error {
			return os.WriteFile(target, []byte(strings.Replace(content, "a program", "A program", 1)), 0o755)
		}, false},
		{"another of the same size, differing at the end", func() error {
			return os.WriteFile(target, []byte(content[:len(content)-1]+"x"), 0o755)
		}, false},
		{"a part of it", func() error { return os.Truncate(target, 100) }, false},
		{"not executable", func() error { return os.Chmod(target, 0o644) }, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			expect.NoError(t, test.before())
			old, _ := os.Stat(target)
			expect.NoError(t, installPrograms([]string{source}, dir))
			got, err := os.ReadFile(target)
			if err != nil || string(got) != content {
				t.Errorf("installed %d bytes (%v), not the program", len(got), err)
			}
			now, err := os.Stat(target)
			if err != nil || now.Mode() != 0o755 {
				t.Errorf("installed with %v (%v), want an executable file", now.Mode(), err)
			}
			if old != nil && os.SameFile(old, now) != test.stays {
				t.Errorf("the same file: %v, want %v", !test.stays, test.stays)
			}
		})
	}
}

func TestInstallProgramThatIsMissing(t *testing.T) {
	err := installPrograms([]string{"/no/such/hook"}, t.TempDir())
	expect.Error(t, err, "/no/such/hook does not exist")
}

// NVIDIA's hook is not in the image, but on nodes that have its toolkit.
func TestProgramOfTheHost(t *testing.T) {
	image, host := t.TempDir(), t.TempDir()
	ours, both := filepath.Join(image, "ours"), filepath.Join(image, "both")
	theirs := filepath.Join(image, "theirs")
	for _, file := range []string{ours, both, filepath.Join(host, both), filepath.Join(host, theirs)} {
		expect.NoError(t, os.MkdirAll(filepath.Dir(file), 0o755))
		expect.NoError(t, os.WriteFile(file, nil, 0o755))
	}
	none := filepath.Join(image, "none")
	for source, want := range map[string]bool{ours: false, both: false, theirs: true, none: false, "": false} {
		expect.Equal(t, want, IsOnHost(source, host), "%q is the host's", source)
	}
}
