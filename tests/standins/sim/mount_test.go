// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/gpushare/dra-driver-gpushare/internal/testneeds"
)

// inMountNamespace runs do where its mounts are nobody else's.
func inMountNamespace(t *testing.T, do func() error) {
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
		if err != nil {
			err = errors.Join(errNoNamespace, err)
		} else {
			err = do()
		}
		done <- err
	}()
	if err := <-done; errors.Is(err, errNoNamespace) {
		testneeds.Skipf(t, "this machine lets nobody mount: %v", err)
	} else if err != nil {
		t.Error(err)
	}
}

var errNoNamespace = errors.New("make a mount namespace")

// What a program tells the driver it can tell it from a container that sees the node read-only.
func TestMountState(t *testing.T) {
	root, view := filepath.Join(t.TempDir(), "driver"), t.TempDir()
	writeRoot(t, load(t, "t4x1"), root)
	inMountNamespace(t, func() error {
		for range 2 { // a DaemonSet's pod that is started again
			if err := MountState(root); err != nil {
				return err
			}
		}
		mounts, err := os.ReadFile("/proc/thread-self/mounts")
		if err != nil {
			return err
		}
		if n := strings.Count(string(mounts), " "+filepath.Join(root, StateDir)+" "); n != 1 {
			t.Errorf("the directory is mounted %d times, want once", n)
		}
		err = errors.Join(unix.Mount(root, view, "", unix.MS_BIND|unix.MS_REC, ""),
			unix.Mount("", view, "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY, ""))
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(view, "file"), nil, 0o644); !errors.Is(err, unix.EROFS) {
			t.Errorf("a file beside it can be written: %v", err)
		}
		return os.WriteFile(filepath.Join(view, StateDir, "file"), nil, 0o644)
	})
}
