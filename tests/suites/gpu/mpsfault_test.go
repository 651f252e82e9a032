// SPDX-License-Identifier: Apache-2.0

//go:build gpu

package gpu

import (
	"strings"
	"testing"
	"time"

	"github.com/gpushare/dra-driver-gpushare/pkg/mode"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/mps"
)

// One program writes where no memory is. What NVIDIA's documents say of the others is to be seen, and whether the
// supervisor tells it: that all are lost, and when the GPU serves again. Whose fault it was may not be known.
func (m *mpsNode) testFault(t *testing.T) {
	s, other := m.grant(t, mode.MPS, units, 0), m.grant(t, mode.MPS, units, 0)
	neighbour, faulty := m.start(t, other, 0, "alloc", "1"), m.start(t, s, 0, "fault")
	pid := faulty.cmd.Process.Pid
	before, err := m.dir.Status(m.gpu.UUID)
	if err != nil {
		t.Fatal(err)
	}
	faulty.goOn()
	report(t, "a program that writes where no memory is", "nothing", faulty.answer(), "none")
	var f *mps.Fault
	for deadline := time.Now().Add(readyLimit); f == nil; time.Sleep(10 * time.Millisecond) {
		status, err := m.dir.Status(m.gpu.UUID)
		if err != nil || time.Now().After(deadline) {
			t.Fatalf("the fault is not told of: %+v (%v)", status, err)
		}
		f = status.Fault
	}
	report(t, "the fault, as the supervisor tells it", "nothing", f.Tell(mps.Client.String), "none")
	neighbour.goOn()
	answer := neighbour.answer()
	report(t, "another program on the GPU, after it", granted, answer, "lost with it")
	if !strings.HasPrefix(answer, "CUDA_ERROR_") {
		t.Errorf("the other program: %s, want it lost", answer)
	}
	m.awaitDaemon(t)
	after, err := m.dir.Status(m.gpu.UUID)
	if err != nil || after.Fault == nil || after.Fault.Over.IsZero() {
		t.Fatalf("the end of the fault is not told of: %+v (%v)", after, err)
	}
	if c := after.Fault.Culprit; c != nil && c.PID != pid {
		t.Errorf("the fault is said to be that of %s, and was that of process %d", c, pid)
	}
	if after.Restarts != before.Restarts {
		t.Errorf("the daemon was started anew %d times, though all clients had ended", after.Restarts-before.Restarts)
	}
	report(t, "the GPU serves again after the fault", "both programs ended",
		after.Fault.Over.Sub(after.Fault.Seen).String(), "none")
	m.checkAllocation(t, s, s.capMiB/2, granted)
}
