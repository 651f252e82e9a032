// SPDX-License-Identifier: Apache-2.0

package harness

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/tests/standins/sim/memory"
)

// ErrNotPrivileged is what a program is told that may not set limits of GPU memory.
var ErrNotPrivileged = errors.New("the container has not CAP_SYS_ADMIN")

// ControlGroups says which control groups containers of this machine are limited by, for a test's log; or skips the
// test where there are none that NVIDIA's driver could count for.
func ControlGroups(t *testing.T) string {
	t.Helper()
	tree, err := memory.Tree()
	if err != nil {
		t.Skip("memory limits by control group:", err)
	}
	if tree == "/sys/fs/cgroup" {
		return "of version 2"
	}
	return "of version 2 in " + tree + ", beside those of version 1, which limit all else"
}

// Program starts a CUDA program on a GPU of a node in a pod's container. Its environment does not matter: the driver
// counts what it takes for the container's control group. It ends with the test. The error is memory.ErrOutOfMemory
// where there is no room for its context.
func (n *Namespace) Program(t *testing.T, node, pod, container, uuid string) (*memory.Client, error) {
	t.Helper()
	program, err := memory.Open(n.NodeFile(node, driverRoot), uuid, n.cgroup(t, pod, container))
	if err != nil {
		return nil, err
	}
	t.Cleanup(func() {
		if err := program.Close(); err != nil {
			t.Errorf("end the CUDA program in %s/%s: %v", pod, container, err)
		}
	})
	return program, nil
}

// MemoryLimitMiB is the nearest limit of a container: its own, or that of its pod. It is 0 where neither has one.
func (n *Namespace) MemoryLimitMiB(t *testing.T, node, pod, container, uuid string) int64 {
	t.Helper()
	for group := n.cgroup(t, pod, container); group.Depth() > 0; group = group.Above() {
		limit, limited, err := memory.LimitOf(n.NodeFile(node, driverRoot), uuid, group)
		expect.NoError(t, err)
		if limited {
			return limit.HardMiB
		}
	}
	return 0
}

// LiftMemoryLimit has a program in a container take all limits away that hold it, or is ErrNotPrivileged.
func (n *Namespace) LiftMemoryLimit(t *testing.T, node, pod, container, uuid string) error {
	t.Helper()
	const sysAdmin = 21
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", n.ContainerPID(t, pod, container)))
	expect.NoError(t, err)
	for line := range strings.Lines(string(status)) {
		if effective, found := strings.CutPrefix(line, "CapEff:"); found {
			capabilities, err := strconv.ParseUint(strings.TrimSpace(effective), 16, 64)
			expect.NoError(t, err)
			if capabilities>>sysAdmin&1 == 0 {
				return ErrNotPrivileged
			}
			return memory.Lift(n.NodeFile(node, driverRoot), uuid, n.cgroup(t, pod, container))
		}
	}
	t.Fatalf("the capabilities of %s/%s are not told", pod, container)
	return nil
}

func (n *Namespace) cgroup(t *testing.T, pod, container string) memory.Cgroup {
	t.Helper()
	group, err := memory.Of(n.ContainerPID(t, pod, container))
	expect.NoError(t, err)
	return group
}

// ContainerPID is a process of a container that runs.
func (n *Namespace) ContainerPID(t *testing.T, pod, container string) int {
	t.Helper()
	var found int
	n.WaitPod(t, pod, "to have a process of container "+container, func(object *corev1.Pod) error {
		id := containerID(object, container)
		if id == "" {
			return errors.New("it does not run")
		}
		files, err := filepath.Glob("/proc/[0-9]*/cgroup")
		if err != nil {
			return err
		}
		for _, file := range files {
			// What ends meanwhile is not it.
			content, err := os.ReadFile(file)
			if err != nil || !bytes.Contains(content, []byte(id)) {
				continue
			}
			found, err = strconv.Atoi(filepath.Base(filepath.Dir(file)))
			return err
		}
		return fmt.Errorf("no process of this machine is in a control group of %s", id)
	})
	return found
}

func containerID(pod *corev1.Pod, container string) string {
	for _, status := range pod.Status.ContainerStatuses {
		if status.Name == container {
			_, id, _ := strings.Cut(status.ContainerID, "://")
			return id
		}
	}
	return ""
}
