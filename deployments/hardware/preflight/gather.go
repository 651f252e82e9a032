// SPDX-License-Identifier: Apache-2.0

package preflight

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// ReadCgroups finds out what control groups the machine has.
func ReadCgroups() (Cgroups, error) {
	mounts, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		return Cgroups{}, fmt.Errorf("find the control groups: %w", err)
	}
	c, tree := mounted(string(mounts))
	if tree == "" || len(c.V1) > 0 {
		return c, nil
	}
	controllers, err := os.ReadFile(filepath.Join(tree, "cgroup.controllers"))
	if err != nil {
		return Cgroups{}, fmt.Errorf("find the control groups: %w", err)
	}
	c.V2, c.Controllers = tree, strings.Fields(string(controllers))
	handed, err := os.ReadFile(filepath.Join(tree, "cgroup.subtree_control"))
	if err != nil {
		return Cgroups{}, fmt.Errorf("find the control groups: %w", err)
	}
	c.Crowded = crowded(tree, strings.Fields(string(handed)))
	return c, nil
}

// crowded reports whether the group has processes of its own and may not hand controllers
// down beside them. The machine's root may; it alone has no type.
func crowded(tree string, handed []string) bool {
	if _, err := os.Stat(filepath.Join(tree, "cgroup.type")); err != nil {
		return false
	}
	for _, controller := range neededV2 {
		if !slices.Contains(handed, controller) {
			processes, err := os.ReadFile(filepath.Join(tree, "cgroup.procs"))
			return err == nil && len(bytes.TrimSpace(processes)) > 0
		}
	}
	return false
}

// mounted reads the content of /proc/self/mounts: the controllers of v1, whether one of
// the trees is read-only, and where a v2 tree is.
func mounted(mounts string) (c Cgroups, v2 string) {
	for line := range strings.Lines(mounts) {
		fields := strings.Fields(line)
		if len(fields) < 4 || fields[2] != "cgroup" && fields[2] != "cgroup2" {
			continue
		}
		options := strings.Split(fields[3], ",")
		c.ReadOnly = c.ReadOnly || slices.Contains(options, "ro")
		if fields[2] == "cgroup2" {
			v2 = fields[1]
			continue
		}
		for _, option := range options {
			if slices.Contains(
				[]string{"cpu", "cpuacct", "cpuset", "memory", "pids", "devices", "freezer", "blkio"},
				option,
			) {
				c.V1 = append(c.V1, option)
			}
		}
	}
	return c, v2
}

// Named finds the processes of that name.
func Named(name string) []Process {
	files, err := filepath.Glob("/proc/[0-9]*/comm")
	if err != nil {
		return nil
	}
	var found []Process
	for _, file := range files {
		comm, err := os.ReadFile(file)
		if err != nil || strings.TrimSpace(string(comm)) != name {
			continue
		}
		if pid, err := strconv.Atoi(filepath.Base(filepath.Dir(file))); err == nil {
			found = append(found, Process{PID: pid, Name: name})
		}
	}
	return found
}

// FreeMiB is what root may still write where the directory is, or would be.
func FreeMiB(dir string) (int64, error) {
	for {
		var info unix.Statfs_t
		err := unix.Statfs(dir, &info)
		if errors.Is(err, fs.ErrNotExist) && dir != filepath.Dir(dir) {
			dir = filepath.Dir(dir)
			continue
		}
		if err != nil {
			return 0, fmt.Errorf("find out what is free in %s: %w", dir, err)
		}
		return int64(info.Bavail) * info.Bsize >> 20, nil
	}
}

// Namespaces tries to run the program, which has to succeed with these arguments, in the
// namespaces that a node has of its own.
func Namespaces(program string, args ...string) error {
	cmd := exec.Command(program, args...)
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: syscall.CLONE_NEWPID | syscall.CLONE_NEWNS | syscall.CLONE_NEWUTS | syscall.CLONE_NEWIPC |
			syscall.CLONE_NEWNET,
	}
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%w %s", err, bytes.TrimSpace(out))
	}
	return nil
}
