// SPDX-License-Identifier: Apache-2.0

package cluster

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

// Obstacles returns why this machine cannot run a cluster, and what to do about each. It changes nothing.
func Obstacles() []error {
	return slices.DeleteFunc([]error{checkRoot(), checkNamespaces(), checkCgroups()},
		func(err error) bool { return err == nil })
}

// checkNamespaces runs this program in the namespaces that a node has of its own.
func checkNamespaces() error {
	program, err := os.Executable()
	if err != nil {
		return fmt.Errorf("try namespaces: %w", err)
	}
	cmd := exec.Command(program, "--help")
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID | syscall.CLONE_NEWNS | syscall.CLONE_NEWUTS |
		syscall.CLONE_NEWIPC | syscall.CLONE_NEWNET}
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("no namespaces can be made here (%w %s): use the machine itself, or a privileged container", err,
			bytes.TrimSpace(out))
	}
	return nil
}

func checkCgroups() error {
	mounted, err := mountedHierarchies()
	if err != nil {
		return err
	}
	return usableCgroups(mounted)
}

// The controllers without which the kubelet does not start, in trees of version 1, and in one of version 2.
var (
	neededOfV1 = []string{"cpu", "cpuacct", "cpuset", "memory"}
	neededOfV2 = []string{"cpu", "cpuset", "memory", "pids"}
)

// usableCgroups looks whether kubelets can make control groups in these trees. Beside trees of version 1 that have
// controllers, one of version 2 has none.
func usableCgroups(mounted []hierarchy) error {
	var ofV1 []string
	v2 := ""
	for _, h := range mounted {
		options := strings.Split(h.options, ",")
		switch {
		case slices.Contains(options, "ro"):
			return fmt.Errorf("control groups cannot be made: %s is mounted read-only, as in a container without privileges",
				h.path)
		case h.unified:
			v2 = h.path
		default:
			ofV1 = append(ofV1, options...)
		}
	}
	if lacks := missing(neededOfV1, ofV1); v2 == "" || len(lacks) < len(neededOfV1) {
		if len(lacks) > 0 {
			return fmt.Errorf("control groups v1 without %s, which the kubelet needs: mount them, or boot with v2 "+
				"(systemd.unified_cgroup_hierarchy=1)", strings.Join(lacks, ", "))
		}
		return nil
	}
	has, err := words(filepath.Join(v2, "cgroup.controllers"))
	if err != nil {
		return fmt.Errorf("find the control groups: %w", err)
	}
	if lacks := missing(neededOfV2, has); len(lacks) > 0 {
		return fmt.Errorf("control groups v2 without the controllers %s, which the kubelet needs: have them in "+
			"%s/cgroup.controllers", strings.Join(lacks, ", "), v2)
	}
	return mayHandDown(v2)
}

// mayHandDown looks whether the group can hand its controllers down. One with processes of its own cannot, but for the
// machine's root, which alone has no type.
func mayHandDown(group string) error {
	if _, err := os.Stat(filepath.Join(group, "cgroup.type")); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	handed, err := words(filepath.Join(group, "cgroup.subtree_control"))
	processes, processesErr := words(filepath.Join(group, "cgroup.procs"))
	if err := errors.Join(err, processesErr); err != nil {
		return fmt.Errorf("look into control group %s: %w", group, err)
	}
	if len(missing(neededOfV2, handed)) > 0 && len(processes) > 0 {
		return fmt.Errorf("processes sit in this container's own control group %s, so it can hand no controllers down: move "+
			"them to a group below it, or use the machine itself", group)
	}
	return nil
}

// missing are the names that all does not have.
func missing(names, all []string) (lacks []string) {
	return slices.DeleteFunc(slices.Clone(names), func(name string) bool { return slices.Contains(all, name) })
}

func words(file string) ([]string, error) {
	content, err := os.ReadFile(file)
	return strings.Fields(string(content)), err
}
