// SPDX-License-Identifier: Apache-2.0

package harness

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
)

// Lose starts a process in the control group of a pod, below which the container is, that no container runtime knows:
// such are left where a runtime's shim dies, or fails to clean up in time. It returns a channel that is closed when the
// process has ended, which it has with the test.
func (n *Namespace) Lose(t *testing.T, pod, container string) <-chan struct{} {
	t.Helper()
	inside := n.ContainerPID(t, pod, container)
	cgroups, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", inside))
	expect.NoError(t, err)
	group, err := groupOfPod(cgroups)
	expect.NoError(t, err)
	shim, err := outside(inside)
	expect.NoError(t, err)
	// The node's kubelet can end what is in the node's PID namespace.
	process := exec.Command("nsenter", "--target", strconv.Itoa(shim), "--pid", "sh", "-euc",
		`mkdir "$0"; echo 0 >"$0/cgroup.procs"; echo in; exec sleep infinity`, filepath.Join(group, "lost"))
	process.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	process.Stderr = os.Stderr
	out, err := process.StdoutPipe()
	expect.NoError(t, err)
	expect.NoError(t, process.Start())
	ended := make(chan struct{})
	t.Cleanup(func() {
		if err := syscall.Kill(-process.Process.Pid, syscall.SIGKILL); err != nil && !errors.Is(err, syscall.ESRCH) {
			t.Errorf("end the process that was lost: %v", err)
		}
		<-ended
	})
	if line, err := bufio.NewReader(out).ReadString('\n'); err != nil {
		t.Errorf("the process is not in the pod's control group: %q, %v", line, err)
	}
	go func() {
		defer close(ended)
		_ = process.Wait() // whoever killed it
	}()
	return ended
}

// outside is the first process above one in a container that is not in the container's PID namespace.
func outside(pid int) (int, error) {
	for depth := 0; ; {
		numbers, err := numbersOf(pid)
		if err != nil || len(numbers) < depth {
			return pid, err
		}
		depth = len(numbers)
		above, err := parentOf(pid)
		if err != nil {
			return 0, err
		}
		pid = above.Pid
	}
}

// groupOfPod is the directory of the control group above a container's, which counts processes: that of version 2, or
// of version 1's pids controller. content is what the kernel says of one of the container's processes.
func groupOfPod(content []byte) (string, error) {
	const mounted = "/sys/fs/cgroup"
	found := ""
	for line := range bytes.Lines(content) {
		number, rest, _ := bytes.Cut(bytes.TrimSpace(line), []byte(":"))
		controllers, path, _ := bytes.Cut(rest, []byte(":"))
		switch {
		case string(controllers) == "pids":
			return filepath.Join(mounted, "pids", filepath.Dir(string(path))), nil
		case string(number) == "0":
			found = filepath.Join(mounted, filepath.Dir(string(path)))
		}
	}
	if found == "" {
		return "", fmt.Errorf("no control group that counts processes among %q", content)
	}
	return found, nil
}
