// SPDX-License-Identifier: Apache-2.0

package harness

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/tests/standins/sim"
)

// GPUProcess is a process that holds memory of a simulated GPU: of a pod with one container, or,
// without a pod, the node's kubelet.
type GPUProcess struct {
	GPU       int
	Pod       string
	MemoryMiB int64
	// MPS says that it is a client of MPS.
	MPS bool
}

// SetGPUProcesses has the NVIDIA driver of a node tell that these processes are on its GPUs, and
// no others, until the test ends.
func (n *Namespace) SetGPUProcesses(t *testing.T, node string, processes ...GPUProcess) {
	t.Helper()
	numbers := make([]int, len(processes))
	for i, p := range processes {
		process := func() *os.Process { return n.kubelet(t, node) }
		if p.Pod != "" {
			process = func() *os.Process { return n.process(t, p.Pod) }
		}
		number, err := numberInNode(process().Pid)
		expect.NoError(t, err)
		numbers[i] = number
	}
	n.ChangeMachine(t, node, func(s *sim.Spec) {
		for i := range s.GPUs {
			s.GPUs[i].State.Processes = nil
		}
		for i, p := range processes {
			g, err := s.Find(fmt.Sprintf("gpu-%d", p.GPU))
			if err != nil {
				t.Error(err)
				continue
			}
			state := &s.GPUs[g].State
			state.Processes = append(state.Processes, sim.Process{PID: numbers[i], MemoryMiB: p.MemoryMiB, MPS: p.MPS})
		}
	})
}

// numberInNode is the process' number in the PID namespace of its node, which is the next
// one below that of this program.
func numberInNode(pid int) (int, error) {
	numbers, err := numbersOf(pid)
	if err != nil {
		return 0, err
	}
	if len(numbers) < 2 {
		return 0, fmt.Errorf("process %d is in no node's PID namespace", pid)
	}
	return strconv.Atoi(numbers[1])
}

// numbersOf are the process' numbers in this program's PID namespace and in those below that it is in.
func numbersOf(pid int) ([]string, error) {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return nil, err
	}
	for line := range strings.Lines(string(status)) {
		if numbers, is := strings.CutPrefix(line, "NSpid:"); is {
			return strings.Fields(numbers), nil
		}
	}
	return nil, fmt.Errorf("the kernel does not say in which PID namespaces process %d is", pid)
}
