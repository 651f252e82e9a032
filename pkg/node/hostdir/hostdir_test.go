// SPDX-License-Identifier: Apache-2.0

package hostdir

import (
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/internal/testneeds"
)

// host is a root directory in which var/run leads to run, and with the directory
// run/cdi.
func host(t *testing.T) string {
	t.Helper()
	root := t.TempDir()
	err := errors.Join(
		os.MkdirAll(filepath.Join(root, "run/cdi"), 0o755),
		os.Mkdir(filepath.Join(root, "var"), 0o755),
		os.Symlink("/run", filepath.Join(root, "var/run")),
	)
	expect.NoError(t, err)
	return root
}

// inNamespace runs do with the host's run/cdi mounted at mounted, as a container has it.
func inNamespace(t *testing.T, root, mounted string, do func()) {
	t.Helper()
	testneeds.Root(t, "only root can mount")
	done := make(chan error)
	go func() {
		// The thread ends with its goroutine, and with it the namespace.
		runtime.LockOSThread()
		err := unix.Unshare(unix.CLONE_NEWNS | unix.CLONE_FS)
		if err == nil {
			err = unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, "")
		}
		if err == nil {
			err = unix.Mount(filepath.Join(root, "run/cdi"), mounted, "", unix.MS_BIND, "")
		}
		if err == nil {
			do()
		}
		done <- err
	}()
	if err := <-done; err != nil {
		testneeds.Skipf(t, "this machine lets nobody mount: %v", err)
	}
}

func TestMountOfADirectory(t *testing.T) {
	move := func(t *testing.T, dir string) {
		expect.NoError(t, os.Rename(dir, dir+".old"))
	}
	for name, tc := range map[string]struct {
		happens func(t *testing.T, dir, mounted string)
		want    error
	}{
		"nothing": {happens: func(*testing.T, string, string) {}},
		"removed": {
			happens: func(t *testing.T, dir, _ string) { _ = os.Remove(dir) },
			want:    ErrElsewhere,
		},
		"removed and created again": {
			happens: func(t *testing.T, dir, _ string) { _, _ = os.Remove(dir), os.Mkdir(dir, 0o755) },
			want:    ErrElsewhere,
		},
		"renamed": {happens: func(t *testing.T, dir, _ string) { move(t, dir) }, want: ErrElsewhere},
		"renamed, and another one made": {
			happens: func(t *testing.T, dir, _ string) { move(t, dir); _ = os.Mkdir(dir, 0o755) },
			want:    ErrElsewhere,
		},
		"mounted over": {
			happens: func(t *testing.T, dir, _ string) {
				expect.NoError(t, unix.Mount("tmpfs", dir, "tmpfs", 0, ""))
			},
			want: ErrElsewhere,
		},
		"read-only": {
			happens: func(t *testing.T, _, mounted string) {
				expect.NoError(t, unix.Mount("", mounted, "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY, ""))
			},
			want: ErrReadOnly,
		},
	} {
		t.Run(name, func(t *testing.T) {
			root := host(t)
			// The path is the same here and there, so the mount is a link's target
			// on the host: <root>/<mounted> leads to run/cdi.
			mounted := t.TempDir()
			below := filepath.Join(root, mounted)
			expect.NoError(t, errors.Join(os.MkdirAll(filepath.Dir(below), 0o755), os.Symlink("/var/run/cdi", below)))
			inNamespace(t, root, mounted, func() {
				d := Dir{Path: mounted, HostRoot: root}
				expect.NoErrorf(t, d.Check(), "at first")
				tc.happens(t, filepath.Join(root, "run/cdi"), mounted)
				expect.ErrorIs(t, d.Check(), tc.want)
			})
		})
	}
}

func TestDirectoryOfAProcessOnTheHost(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "cdi")
	expect.NoError(t, os.Mkdir(dir, 0o755))
	expect.NoError(t, (Dir{Path: dir, HostRoot: "/"}).Check())
	if err := (Dir{Path: dir + "/no", HostRoot: "/"}).Check(); err == nil {
		t.Error("a directory that is not there is all right")
	}
}

// TestRenamesElsewhere: the kernel cannot be sure of a path that leads through ".." while
// files are renamed anywhere on the machine, as /var/run/cdi does where /var/run is a
// link. That is no directory that was lost.
func TestRenamesElsewhere(t *testing.T) {
	root, elsewhere := t.TempDir(), t.TempDir()
	expect.NoError(t, errors.Join(os.MkdirAll(filepath.Join(root, "run/cdi"), 0o755),
		os.MkdirAll(filepath.Join(root, "var"), 0o755),
		os.Symlink("../run", filepath.Join(root, "var/run")),
		os.WriteFile(filepath.Join(elsewhere, "a"), nil, 0o600)))
	done := make(chan struct{})
	renamed := make(chan error, 1)
	go func() {
		a, b := filepath.Join(elsewhere, "a"), filepath.Join(elsewhere, "b")
		for {
			select {
			case <-done:
				close(renamed)
				return
			default:
			}
			if err := os.Rename(a, b); err != nil {
				renamed <- err
				return
			}
			a, b = b, a
		}
	}()
	for range 20000 {
		var found unix.Stat_t
		expect.NoErrorf(t, statBelow(root, "/var/run/cdi", &found), "a directory that is there")
	}
	close(done)
	expect.NoError(t, <-renamed)
}

func TestSame(t *testing.T) {
	root := host(t)
	expect.NoError(t, os.MkdirAll(filepath.Join(root, "etc/cdi"), 0o755))
	for name, test := range map[string]struct {
		a, b string
		want bool
	}{
		"one path":              {"/run/cdi", "/run/cdi", true},
		"by a link of the host": {"/var/run/cdi", "/run/cdi", true},
		"two directories":       {"/etc/cdi", "/run/cdi", false},
		"one is not there":      {"/opt/cdi", "/run/cdi", false},
		"none is there":         {"/opt/cdi", "/opt/cdi", false},
	} {
		expect.Equal(t, test.want, Same(root, test.a, test.b), "%s", name)
	}
}
