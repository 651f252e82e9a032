// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpushare/dra-driver-gpushare/tests/cluster/internal/proc"
	"github.com/gpushare/dra-driver-gpushare/tests/cluster/internal/sandbox"
)

// hierarchy is one mounted tree of control groups.
type hierarchy struct {
	path    string
	unified bool // cgroup v2
	// options are those of the mount: of a v1 tree, its controllers among them.
	options string
}

// hierarchies reads them from the content of /proc/self/mounts. A machine has one
// v2 tree, or several v1 trees, or several v1 trees beside a v2 tree without
// controllers.
func hierarchies(mounts string) []hierarchy {
	var found []hierarchy
	for line := range strings.Lines(mounts) {
		fields := strings.Fields(line)
		if len(fields) < 4 {
			continue
		}
		switch fields[2] {
		case "cgroup", "cgroup2":
			found = append(found, hierarchy{path: fields[1], unified: fields[2] == "cgroup2", options: fields[3]})
		}
	}
	return found
}

func mountedHierarchies() ([]hierarchy, error) {
	mounts, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		return nil, fmt.Errorf("find the control groups: %w", err)
	}
	found := hierarchies(string(mounts))
	if len(found) == 0 {
		return nil, errors.New("no control groups are mounted: mount cgroup2 on /sys/fs/cgroup")
	}
	return found, nil
}

// cgroupView is how a node sees the machine's control groups.
type cgroupView struct {
	// root is the node's own group in that view: kubelet's --cgroup-root.
	root string
	// binds make the view.
	binds []sandbox.Bind
}

// nodeCgroups is the view of a node whose group has this name.
func nodeCgroups(group string) (cgroupView, error) {
	mounted, err := mountedHierarchies()
	if err != nil {
		return cgroupView{}, err
	}
	return viewOf(mounted, group), nil
}

// viewOf shows a node of v1 trees its own group alone, as the root of each. Every kubelet
// watches all groups it sees, tree by tree, and asks containerd about each: with a dozen
// nodes that is much of what starting a pod costs. In a v2 tree, which is one alone, a
// process has to find its own group, and the node's programs run outside of the node's.
func viewOf(mounted []hierarchy, group string) cgroupView {
	if slices.ContainsFunc(mounted, func(h hierarchy) bool { return !h.unified }) {
		view := cgroupView{root: "/"}
		for _, h := range mounted {
			view.binds = append(view.binds, sandbox.Bind{Source: filepath.Join(h.path, group), Target: h.path, Instead: true})
		}
		return view
	}
	return cgroupView{root: "/" + group}
}

// makeCgroup makes the control group of a node in every hierarchy, ready for
// kubelet to make pods' groups in it.
func makeCgroup(name string) error {
	mounted, err := mountedHierarchies()
	if err != nil {
		return err
	}
	for _, h := range mounted {
		group := filepath.Join(h.path, name)
		if err := os.Mkdir(group, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
			return fmt.Errorf("make control group: %w", err)
		}
		prepare := inheritCpuset
		if h.unified {
			prepare = enableControllers
		}
		if err := prepare(h.path, group); err != nil {
			return fmt.Errorf("prepare control group %s: %w", group, err)
		}
	}
	return nil
}

// inheritCpuset copies what a new v1 cpuset has to have before a process may enter
// it. Other v1 hierarchies have no such files.
func inheritCpuset(parent, group string) error {
	for _, file := range []string{"cpuset.cpus", "cpuset.mems"} {
		value, err := os.ReadFile(filepath.Join(parent, file))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(group, file), value, 0o644); err != nil {
			return err
		}
	}
	return nil
}

// enableControllers hands the v2 controllers that kubelet works with down to the
// children of both groups. A v2 tree beside v1 trees has none.
func enableControllers(parent, group string) error {
	available, err := os.ReadFile(filepath.Join(parent, "cgroup.controllers"))
	if err != nil {
		return err
	}
	for _, controller := range strings.Fields(string(available)) {
		if !slices.Contains([]string{"cpu", "cpuset", "io", "memory", "pids", "hugetlb"}, controller) {
			continue
		}
		for _, dir := range []string{parent, group} {
			file := filepath.Join(dir, "cgroup.subtree_control")
			err := os.WriteFile(file, []byte("+"+controller), 0o644)
			if errors.Is(err, unix.EBUSY) {
				return fmt.Errorf("enable %s in %s: %w: processes sit in that group itself; move them to a group below it",
					controller, file, err)
			}
			if err != nil {
				return fmt.Errorf("enable %s in %s: %w", controller, file, err)
			}
		}
	}
	return nil
}

// handedDown are the controllers that the root of a v2 tree hands down, by the file that says so. Nodes add to them.
func handedDown() (map[string][]string, error) {
	mounted, err := mountedHierarchies()
	if err != nil {
		return nil, err
	}
	handed := map[string][]string{}
	for _, h := range mounted {
		if h.unified {
			file := filepath.Join(h.path, "cgroup.subtree_control")
			if handed[file], err = words(file); err != nil {
				return nil, fmt.Errorf("find the control groups: %w", err)
			}
		}
	}
	return handed, nil
}

// handDownAsBefore has roots of v2 trees hand down no more than they did. A controller that another cluster has handed
// further down stays.
func handDownAsBefore(before map[string][]string) error {
	for file, names := range before {
		now, err := words(file)
		if err != nil {
			return fmt.Errorf("find the control groups: %w", err)
		}
		for _, controller := range missing(now, names) {
			if err := os.WriteFile(file, []byte("-"+controller), 0o644); err != nil && !errors.Is(err, unix.EBUSY) {
				return fmt.Errorf("disable %s in %s, as it was before: %w", controller, file, err)
			}
		}
	}
	return nil
}

// removeCgroup removes a node's control group and all below it from every
// hierarchy. Its processes have to have been killed; they may take a moment to go.
func removeCgroup(ctx context.Context, name string) error {
	mounted, err := mountedHierarchies()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	for _, h := range mounted {
		group := filepath.Join(h.path, name)
		var last error
		err := proc.Poll(ctx, 20*time.Millisecond, func() bool {
			last = removeTree(group)
			return last == nil
		})
		if err != nil {
			return fmt.Errorf("remove control group %s: %w", group, errors.Join(last, err))
		}
	}
	return nil
}

// removeTree removes directories from the innermost out. The files in a control
// group cannot be removed and go with it.
func removeTree(group string) error {
	entries, err := os.ReadDir(group)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, entry := range entries {
		if entry.IsDir() {
			if err := removeTree(filepath.Join(group, entry.Name())); err != nil {
				return err
			}
		}
	}
	if err := unix.Rmdir(group); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return &fs.PathError{Op: "rmdir", Path: group, Err: err}
	}
	return nil
}
