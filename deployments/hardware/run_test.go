// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/internal/testneeds"
)

// unpacked is a directory with ./run as it lies in the archive, and a payload that is none.
func unpacked(t *testing.T, neededMiB string) string {
	t.Helper()
	// A directory that other users may look into, as t.TempDir's are not.
	dir, err := os.MkdirTemp("/tmp", "bundle")
	expect.NoError(t, err)
	t.Cleanup(func() { expect.NoError(t, os.RemoveAll(dir)) })
	script, err := os.ReadFile("run.sh")
	expect.NoError(t, err)
	files := map[string]string{"run": string(script), "NEEDED-MIB": neededMiB + "\n", "payload.tar.xz": ""}
	for name, content := range files {
		expect.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(content), 0o755))
	}
	expect.NoError(t, os.Chmod(dir, 0o755))
	return dir
}

// start runs ./run as a user, with a directory to unpack into if it is not empty, and returns its exit status and what
// it says.
func start(t *testing.T, uid uint32, dir, work string, args ...string) (int, string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), filepath.Join(dir, "run"), args...)
	cmd.Env = []string{"PATH=/usr/bin:/bin"}
	if work != "" {
		cmd.Env = append(cmd.Env, "GPU_BUNDLE_WORK="+work)
	}
	if uid != 0 {
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}
	}
	said, err := cmd.CombinedOutput()
	if exit := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return cmd.ProcessState.ExitCode(), string(said)
}

func TestRunRefuses(t *testing.T) {
	testneeds.Root(t, "./run is run as root and as another user")
	for _, tt := range []struct {
		name, needed string
		uid          uint32
		left         []string // of an earlier run
		says         string
	}{
		{"who is not root", "1", 65534, nil,
			"- uid 65534 may not make namespaces, mounts and control groups: run it as root"},
		{"too little disk", "999999999", 0, nil,
			"a run takes 999999999: make room, or name another directory by GPU_BUNDLE_WORK"},
		{"an archive that is damaged", "1", 0, nil, "- the archive is damaged"},
		{"a run beside another", "1", 0, []string{"complete"}, "end it with ./run down"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			dir := unpacked(t, tt.needed)
			if tt.left != nil {
				leave(t, filepath.Join(dir, "work"), tt.left...)
			}
			status, said := start(t, tt.uid, dir, "")
			if reasons := strings.Count("\n"+said, "\n- "); status != exitRefused || !strings.Contains(said, tt.says) ||
				reasons != 1 {
				t.Errorf("status %d, want %d and one line %q:\n%s", status, exitRefused, tt.says, said)
			}
			if _, err := os.Stat(filepath.Join(dir, "work")); (err == nil) != (tt.left != nil) {
				t.Errorf("the directory to unpack into: %v", err)
			}
		})
	}
}

// Nothing is there to take down, or only half of what a run unpacks. In its own directory also what was unpacked
// without a mark, by a version that made none.
func TestDownWithoutARun(t *testing.T) {
	testneeds.Root(t, "./run is run as root")
	for name, test := range map[string]struct {
		work string
		left []string
	}{
		"nothing":                          {"work", nil},
		"half of an unpack":                {"work", []string{".unpacked-by-gpu-bundle", "VERSION"}},
		"half of one of an earlier run":    {"work", []string{"VERSION", "lib/VERSION"}},
		"half of an unpack into another":   {"other", []string{".unpacked-by-gpu-bundle", "VERSION"}},
		"another before anything is in it": {"other", nil},
	} {
		t.Run(name, func(t *testing.T) {
			dir := unpacked(t, "1")
			work, named := filepath.Join(dir, test.work), ""
			if test.work != "work" {
				named = work
			}
			leave(t, work, test.left...)
			if status, said := start(t, 0, dir, named, "down"); status != 0 {
				t.Errorf("status %d: %s", status, said)
			}
			if _, err := os.Stat(work); err == nil {
				t.Error("what was unpacked is still there")
			}
		})
	}
}

// A directory that somebody names by GPU_BUNDLE_WORK may be full of their files.
func TestRunRemovesOnlyItsOwn(t *testing.T) {
	testneeds.Root(t, "./run is run as root")
	for _, args := range [][]string{nil, {"down"}} {
		dir := unpacked(t, "1")
		work := filepath.Join(dir, "other")
		leave(t, work, "data")
		status, said := start(t, 0, dir, work, args...)
		if status != exitRefused || !strings.Contains(said, "holds files that are not of a run") {
			t.Errorf("./run %v: status %d, want %d:\n%s", args, status, exitRefused, said)
		}
		if _, err := os.Stat(filepath.Join(work, "data")); err != nil {
			t.Errorf("./run %v: %v", args, err)
		}
	}
}

// leave makes a directory with these files.
func leave(t *testing.T, dir string, files ...string) {
	t.Helper()
	expect.NoError(t, os.MkdirAll(dir, 0o755))
	for _, name := range files {
		file := filepath.Join(dir, name)
		expect.NoError(t, os.MkdirAll(filepath.Dir(file), 0o755))
		expect.NoError(t, os.WriteFile(file, nil, 0o644))
	}
}

// What a removal leaves that was killed, ./run down removes: the mark is there, and nothing says that all is.
func TestRemovalThatIsKilled(t *testing.T) {
	killed := errors.New("killed")
	for most := range 5 {
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
