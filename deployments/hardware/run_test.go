// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
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

// A directory that somebody names by GPU_BUNDLE_WORK may be full of their files. In its own directory ./run also
// removes what was unpacked without a mark, by a version that made none.
func TestRun(t *testing.T) {
	testneeds.Root(t, "./run is run as root and as another user")
	const other, down, ofOthers = "other", "down", "holds files that are not of a run"
	for name, tt := range map[string]struct {
		uid       uint32
		neededMiB string
		work      string   // what GPU_BUNDLE_WORK names; empty for the script's own
		left      []string // of an earlier run
		args      []string
		refuses   string // empty if it does not
	}{
		"who is not root": {uid: 65534,
			refuses: "uid 65534 may not make namespaces, mounts and control groups: run it as root"},
		"too little disk": {neededMiB: "999999999",
			refuses: "a run takes 999999999: make room, or name another directory by GPU_BUNDLE_WORK"},
		"an archive that is damaged":       {refuses: "the archive is damaged"},
		"a run beside another":             {left: []string{"complete"}, refuses: "end it with ./run down"},
		"a directory of others":            {work: other, left: []string{"data"}, refuses: ofOthers},
		"down, a directory of others":      {work: other, left: []string{"data"}, args: []string{down}, refuses: ofOthers},
		"down, nothing is left":            {left: []string{}, args: []string{down}},
		"down, half of an unpack":          {left: []string{mark, "VERSION"}, args: []string{down}},
		"down, half of one without a mark": {left: []string{"VERSION", "lib/VERSION"}, args: []string{down}},
		"down, half of one into another":   {work: other, left: []string{mark, "VERSION"}, args: []string{down}},
		"down, another that is empty":      {work: other, left: []string{}, args: []string{down}},
	} {
		t.Run(name, func(t *testing.T) {
			dir := unpacked(t, cmp.Or(tt.neededMiB, "1"))
			work, named := filepath.Join(dir, cmp.Or(tt.work, "work")), ""
			if tt.work != "" {
				named = work
			}
			if tt.left != nil {
				leave(t, work, tt.left...)
			}
			status, said := start(t, tt.uid, dir, named, tt.args...)
			want := 0
			if tt.refuses != "" {
				want = exitRefused
				expect.Says(t, said, tt.refuses)
				expect.Equal(t, 1, strings.Count("\n"+said, "\n- "), "reasons in %s", said)
			}
			expect.Equal(t, want, status, "status, and it says %s", said)
			// What it refuses to use stays as it was.
			for _, file := range tt.left {
				if _, err := os.Stat(filepath.Join(work, file)); (err == nil) != (tt.refuses != "") {
					t.Errorf("%s: %v", file, err)
				}
			}
			if _, err := os.Stat(work); (err == nil) != (tt.refuses != "" && tt.left != nil) {
				t.Errorf("the directory to unpack into: %v", err)
			}
		})
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
