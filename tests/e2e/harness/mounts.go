package harness

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"
)

// ReadOnlyInPlugin makes a mounted directory read-only for the plugin of a node,
// as a broken disk does, until the returned function is called or the test ends.
// Root, who ignores the permissions of a directory, cannot write to it either.
func (c *Cluster) ReadOnlyInPlugin(t *testing.T, node, dir string) (undo func()) {
	t.Helper()
	process := pluginProcess(t, c.Plugin(t, node))
	if err := remount(process.Pid, dir, unix.MS_RDONLY); err != nil {
		t.Fatalf("make %s read-only in the plugin of node %s: %v", dir, node, err)
	}
	undo = func() {
		if err := remount(process.Pid, dir, 0); err != nil {
			t.Errorf("make %s writable again in the plugin of node %s: %v", dir, node, err)
		}
	}
	t.Cleanup(undo)
	return undo
}

// remount changes the flags of a mount that a process sees.
func remount(pid int, dir string, flags uintptr) error {
	namespace, err := os.Open(fmt.Sprintf("/proc/%d/ns/mnt", pid))
	if err != nil {
		return err
	}
	result := make(chan error)
	go func() {
		// A thread that has changed its namespace is of no more use: it ends with
		// its goroutine, since it is not unlocked.
		runtime.LockOSThread()
		result <- func() error {
			if err := unix.Unshare(unix.CLONE_FS); err != nil {
				return fmt.Errorf("leave the working directory of the other threads: %w", err)
			}
			if err := unix.Setns(int(namespace.Fd()), unix.CLONE_NEWNS); err != nil {
				return fmt.Errorf("enter the mount namespace of process %d: %w", pid, err)
			}
			return unix.Mount("", dir, "", unix.MS_REMOUNT|unix.MS_BIND|flags, "")
		}()
	}()
	return errors.Join(<-result, namespace.Close())
}
