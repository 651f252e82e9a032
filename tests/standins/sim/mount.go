// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"fmt"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// MountState makes StateDir of a driver root a mount of its own, unless it is one: a container that mounts the node's
// file system read-only, as the driver's programs do, can write there all the same. It takes the capability
// CAP_SYS_ADMIN. In a container the mount reaches the node where the root's volume has the propagation Bidirectional.
func MountState(root string) error {
	dir := filepath.Join(root, StateDir)
	var st unix.Statx_t
	if err := unix.Statx(unix.AT_FDCWD, dir, unix.AT_SYMLINK_NOFOLLOW, 0, &st); err != nil {
		return fmt.Errorf("look whether %s is a mount: %w", dir, err)
	}
	if st.Attributes&unix.STATX_ATTR_MOUNT_ROOT != 0 {
		return nil
	}
	if err := unix.Mount(dir, dir, "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("mount %s on itself: %w: run as root, or in a privileged container", dir, err)
	}
	return nil
}
