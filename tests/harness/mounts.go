// SPDX-License-Identifier: Apache-2.0

package harness

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
)

// The process' first thread cannot end, whatever Go's documentation says of threads that are
// locked: it would stay among the mounts that mount has shown it, and keep what is mounted
// there in use. So it is left to the goroutine that runs main, and with it these functions.
func init() { runtime.LockOSThread() }

// ReadOnly makes a directory read-only for a process and the others of its
// container, as long as they live. What is open in there stays so.
func (c *Cluster) ReadOnly(t *testing.T, process *os.Process, dir string) {
	t.Helper()
	// A mount of its own: one with files open for writing cannot be changed.
	err := mount(process.Pid, dir, dir, unix.MS_BIND)
	if err == nil {
		err = remount(process.Pid, dir, unix.MS_RDONLY)
	}
	expect.NoErrorf(t, err, "make %s read-only for process %d", dir, process.Pid)
}

// BindOnNode mounts a directory of a node on another one there, as a container that mounts for its
// host does, until the test ends.
func (c *Cluster) BindOnNode(t *testing.T, node, source, target string) {
	t.Helper()
	kubelet := c.kubelet(t, node).Pid
	expect.NoErrorf(t, mount(kubelet, source, target, unix.MS_BIND), "mount %s on %s of node %s", source, target, node)
	t.Cleanup(func() {
		// What has files of it open keeps them.
		unmount := func() error { return unix.Unmount(target, unix.MNT_DETACH) }
		if err := amongMounts(kubelet, unmount); err != nil {
			t.Errorf("unmount %s of node %s: %v", target, node, err)
		}
	})
}

// remount changes the flags of a mount that a process sees.
func remount(pid int, dir string, flags uintptr) error {
	return mount(pid, "", dir, unix.MS_REMOUNT|unix.MS_BIND|flags)
}

// mount is mount(2) among the mounts that a process sees.
func mount(pid int, source, dir string, flags uintptr) error {
	return amongMounts(pid, func() error { return unix.Mount(source, dir, "", flags, "") })
}

// amongMounts does something among the mounts that a process sees.
func amongMounts(pid int, do func() error) error {
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
			return do()
		}()
	}()
	return errors.Join(<-result, namespace.Close())
}
