// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
)

// facts are what decides whether a machine can be used as it is, before anything is changed on it. What ./run looks at
// before it unpacks is not among them.
type facts struct {
	// kubelets are the processes of a cluster that the machine is already part of.
	kubelets []string
	cgroups  cgroups
	// namespaces is why processes cannot have namespaces of their own, nil if they can.
	namespaces error
	// driver is why the driver cannot be used, nil if it can; gpus are those it lists, with the processes that use
	// them, leftOut why others cannot be used.
	driver  error
	gpus    []usedGPU
	leftOut []string
	// cut is why the GPU that may be cut into MIG instances must not be; nil if there is no such reason.
	cut error
}

type usedGPU struct {
	name      string
	processes []string
}

// problems are the reasons not to start, a line each, with what to do about it.
func (f facts) problems() []string {
	var problems []string
	add := func(format string, args ...any) {
		problems = append(problems, strings.Join(strings.Fields(fmt.Sprintf(format, args...)), " "))
	}
	for _, kubelet := range f.kubelets {
		add("a kubelet runs on this machine (process %s), whose pods may use the GPUs at any time: stop it first", kubelet)
	}
	if f.namespaces != nil {
		add("no namespaces can be made here (%v): use the machine itself, or a privileged container", f.namespaces)
	}
	if err := f.cgroups.problem(); err != nil {
		add("%v", err)
	}
	switch {
	case f.driver != nil:
		add("%v", f.driver)
	case len(f.gpus) == 0 && len(f.leftOut) > 0:
		add("no GPU can be used: %s", strings.Join(f.leftOut, "; "))
	case len(f.gpus) == 0:
		add("the NVIDIA driver lists no GPU")
	}
	if f.cut != nil {
		add("%v", f.cut)
	}
	for _, g := range f.gpus {
		if len(g.processes) > 0 {
			add("%s is in use by %s: wait until they end, or end them", g.name, strings.Join(g.processes, ", "))
		}
	}
	return problems
}

// cgroups are the machine's control groups.
type cgroups struct {
	// v2 is where a tree of v2 with controllers is mounted; empty where v1 has them.
	v2          string
	controllers []string
	// readOnly says that no group can be made.
	readOnly bool
	// crowded says that processes sit in a v2 group that is not the machine's root, so that its controllers cannot be
	// handed down.
	crowded bool
}

// version is how people call it.
func (c cgroups) version() string {
	if c.v2 != "" {
		return "v2"
	}
	return "v1"
}

// needed are the controllers without which the kubelet does not start.
var needed = map[string][]string{
	"v1": {"cpu", "cpuacct", "cpuset", "memory"},
	"v2": {"cpu", "cpuset", "memory", "pids"},
}

func (c cgroups) problem() error {
	missing := slices.DeleteFunc(slices.Clone(needed[c.version()]),
		func(name string) bool { return slices.Contains(c.controllers, name) })
	switch {
	case c.v2 == "" && len(c.controllers) == 0:
		return errors.New("no control groups are mounted: mount cgroup2 on /sys/fs/cgroup")
	case len(missing) > 0 && c.v2 == "":
		return fmt.Errorf("control groups v1 without %s, which the kubelet needs: mount them, or boot with v2 "+
			"(systemd.unified_cgroup_hierarchy=1)", strings.Join(missing, ", "))
	case len(missing) > 0:
		return fmt.Errorf("control groups v2 without the controllers %s, which the kubelet needs: have them in "+
			"%s/cgroup.controllers", strings.Join(missing, ", "), c.v2)
	case c.readOnly:
		return errors.New("control groups cannot be made: they are mounted read-only, as in a container without privileges")
	case c.crowded:
		return fmt.Errorf("processes sit in this container's own control group %s, so it can hand no controllers down: move "+
			"them to a group below it, or use the machine itself", c.v2)
	}
	return nil
}

// readCgroups finds out what control groups the machine has, by the content of /proc/self/mounts.
func readCgroups(mounts string) (c cgroups, err error) {
	for line := range strings.Lines(mounts) {
		fields := strings.Fields(line)
		if len(fields) < 4 || fields[2] != "cgroup" && fields[2] != "cgroup2" {
			continue
		}
		options := strings.Split(fields[3], ",")
		c.readOnly = c.readOnly || slices.Contains(options, "ro")
		if fields[2] == "cgroup2" {
			c.v2 = fields[1]
		} else {
			c.controllers = append(c.controllers, slices.DeleteFunc(options,
				func(option string) bool { return !slices.Contains(needed["v1"], option) })...)
		}
	}
	if len(c.controllers) > 0 || c.v2 == "" {
		// A v2 tree beside those of v1 has no controllers.
		c.v2 = ""
		return c, nil
	}
	content, err := os.ReadFile(filepath.Join(c.v2, "cgroup.controllers"))
	if err != nil {
		return c, fmt.Errorf("find the control groups: %w", err)
	}
	c.controllers = strings.Fields(string(content))
	c.crowded, err = crowded(c.v2)
	return c, err
}

// crowded reports whether the group has processes of its own and may not hand controllers down beside them. The
// machine's root may; it alone has no type.
func crowded(tree string) (bool, error) {
	if _, err := os.Stat(filepath.Join(tree, "cgroup.type")); errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	handed, err := os.ReadFile(filepath.Join(tree, "cgroup.subtree_control"))
	processes, processesErr := os.ReadFile(filepath.Join(tree, "cgroup.procs"))
	lacks := slices.ContainsFunc(needed["v2"], func(controller string) bool {
		return !slices.Contains(strings.Fields(string(handed)), controller)
	})
	return lacks && len(bytes.TrimSpace(processes)) > 0, errors.Join(err, processesErr)
}

// named are the numbers of the processes of that name.
func named(name string) (found []string) {
	files, _ := filepath.Glob("/proc/[0-9]*/comm") // The pattern is well-formed.
	for _, file := range files {
		if pid := filepath.Base(filepath.Dir(file)); nameOf(pid) == name {
			found = append(found, pid)
		}
	}
	return found
}

func nameOf(pid string) string {
	comm, err := os.ReadFile(filepath.Join("/proc", pid, "comm"))
	if err != nil {
		return "(of another PID namespace)"
	}
	return strings.TrimSpace(string(comm))
}

// namespaces tries to run the program, which has to succeed with these arguments, in the namespaces that a node has of
// its own.
func namespaces(program string, args ...string) error {
	cmd := exec.Command(program, args...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID | syscall.CLONE_NEWNS | syscall.CLONE_NEWUTS |
		syscall.CLONE_NEWIPC | syscall.CLONE_NEWNET}
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%w %s", err, bytes.TrimSpace(out))
	}
	return nil
}
