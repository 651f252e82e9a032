// SPDX-License-Identifier: Apache-2.0

package memory

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// Cgroup is a control group of version 2, or a directory in its place.
type Cgroup struct {
	// chain are the numbers of it and of those that it lies in, from the inside out.
	chain []uint64
}

// Depth is how many control groups it is, with those that it lies in.
func (c Cgroup) Depth() int { return len(c.chain) }

// Above is the one that it lies in.
func (c Cgroup) Above() Cgroup { return Cgroup{c.chain[min(1, len(c.chain)):]} }

// At is the control group whose directory that is.
func At(dir string) (Cgroup, error) {
	var group Cgroup
	for ; ; dir = filepath.Dir(dir) {
		if _, err := os.Stat(filepath.Join(dir, "cgroup.controllers")); err != nil {
			break
		}
		var st unix.Statx_t
		if err := unix.Statx(unix.AT_FDCWD, dir, 0, unix.STATX_INO|unix.STATX_BTIME, &st); err != nil {
			return Cgroup{}, fmt.Errorf("look at control group %s: %w", dir, err)
		}
		number := st.Ino
		if st.Mask&unix.STATX_BTIME != 0 {
			number += uint64(st.Btime.Sec)*1e9 + uint64(st.Btime.Nsec)
		}
		group.chain = append(group.chain, number)
	}
	if len(group.chain) == 0 {
		return Cgroup{}, fmt.Errorf("%s is no control group of version 2", dir)
	}
	return group, nil
}

// Of is the control group of a process of this machine.
func Of(pid int) (Cgroup, error) {
	dir, err := Dir(pid)
	if err != nil {
		return Cgroup{}, err
	}
	return At(dir)
}

// Dir is the directory of the control group of a process of this machine.
func Dir(pid int) (string, error) {
	content, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid))
	if err != nil {
		return "", fmt.Errorf("find the control group of process %d: %w", pid, err)
	}
	mounted, err := Tree()
	if err != nil {
		return "", err
	}
	for line := range strings.Lines(string(content)) {
		if path, found := strings.CutPrefix(strings.TrimSpace(line), "0::"); found {
			return filepath.Join(mounted, path), nil
		}
	}
	return "", fmt.Errorf("process %d is in no control group of version 2", pid)
}

// Tree is where this machine has its control groups of version 2: beside those of version 1, or alone.
func Tree() (string, error) {
	mounts, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		return "", fmt.Errorf("find the control groups: %w", err)
	}
	found := ""
	for line := range strings.Lines(string(mounts)) {
		if fields := strings.Fields(line); len(fields) > 2 && fields[2] == "cgroup2" {
			found = cmp.Or(found, fields[1])
		}
	}
	if found == "" {
		return "", errors.New("no control groups of version 2 are mounted on this machine")
	}
	return found, nil
}
