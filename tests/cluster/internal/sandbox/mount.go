// SPDX-License-Identifier: Apache-2.0

package sandbox

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// shadowDir, in a sandbox's root, holds its private copies of /proc/sys files.
const shadowDir = "/var/lib/cluster-shadows"

// mountAll gives the calling process, in its fresh mount namespace, the file
// system that spec describes.
func mountAll(spec Spec) error {
	// Nothing that is mounted from here on may reach the machine.
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("detach the mounts from the machine's: %w", err)
	}
	if spec.Root == "" {
		return mountProc("/proc")
	}
	if err := enterRoot(spec.Root, spec.Binds); err != nil {
		return err
	}
	for _, path := range spec.Shadows {
		if err := shadow(path); err != nil {
			return err
		}
	}
	// As on a real machine, where kubelet's and containerd's mounts have to
	// reach the containers that look at the host's directories.
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_SHARED, ""); err != nil {
		return fmt.Errorf("share mounts within the sandbox: %w", err)
	}
	return nil
}

func enterRoot(root string, binds []Bind) error {
	if err := bind(root, root); err != nil {
		return err
	}
	for _, b := range binds {
		target := filepath.Join(root, b.Target)
		if b.Instead {
			if err := unix.Unmount(target, unix.MNT_DETACH); err != nil {
				return fmt.Errorf("take off what is mounted at %s: %w", target, err)
			}
		}
		if err := bind(b.Source, target); err != nil {
			return err
		}
		if !b.ReadOnly {
			continue
		}
		if err := unix.Mount("", target, "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY, ""); err != nil {
			return fmt.Errorf("make %s read-only: %w", target, err)
		}
	}
	if err := mountProc(filepath.Join(root, "proc")); err != nil {
		return err
	}
	shm := filepath.Join(root, "dev/shm")
	if err := unix.Mount("tmpfs", shm, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=1777"); err != nil &&
		!errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("mount %s: %w", shm, err)
	}
	if err := os.Chdir(root); err != nil {
		return err
	}
	// With both arguments the same directory the old root ends up on top of
	// the new one, where it is taken off: see pivot_root(2).
	if err := unix.PivotRoot(".", "."); err != nil {
		return fmt.Errorf("make %s the root: %w", root, err)
	}
	if err := unix.Unmount(".", unix.MNT_DETACH); err != nil {
		return fmt.Errorf("take off the old root: %w", err)
	}
	return os.Chdir("/")
}

func bind(source, target string) error {
	if err := unix.Mount(source, target, "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
		return fmt.Errorf("bind %s to %s: %w", source, target, err)
	}
	return nil
}

func mountProc(target string) error {
	if err := unix.Mount("proc", target, "proc", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, ""); err != nil {
		return fmt.Errorf("mount %s: %w", target, err)
	}
	return nil
}

// shadow puts a private copy over a file of /proc/sys. A kernel without that
// file is left without it.
func shadow(path string) error {
	content, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("copy %s: %w", path, err)
	}
	replica := filepath.Join(shadowDir, strings.ReplaceAll(path, "/", "_"))
	if err := os.MkdirAll(shadowDir, 0o755); err != nil {
		return fmt.Errorf("copy %s: %w", path, err)
	}
	if err := os.WriteFile(replica, content, 0o644); err != nil {
		return fmt.Errorf("copy %s: %w", path, err)
	}
	return bind(replica, path)
}
