// SPDX-License-Identifier: Apache-2.0

package supervisor

import (
	"fmt"
	"strings"
	"testing"

	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/mps"
)

// A supervisor was killed, and with it the GPU's daemon and server. Until the next one runs
// the first program gets the GPU, which is EXCLUSIVE_PROCESS: all of it. The next one lets it
// have that until it ends, and nobody else in.
func TestProgramThatHadTheGPUBetweenTwoSupervisors(t *testing.T) {
	w, d := guarded(t, gpu.ComputeExclusiveProcess)
	w.uses(mps.Use{Reserved: true}.With(mps.Limits{MemoryMiB: 1024, ThreadPercent: 100}))
	if err := w.dir.KeepFoundMode("a", gpu.ComputeDefault); err != nil {
		t.Fatal(err)
	}
	const beside = 4711
	d.pids = []int{beside}
	// The server asks for the only context, and does not get it.
	w.control.stillborn = true
	w.run()
	w.pass(func() bool {
		s := w.status("a")
		return s.State == mps.Down && strings.Contains(s.Reason, fmt.Sprintf("process %d", beside))
	}, "the program is named")
	w.awaitMode(d, gpu.ComputeProhibited)
	if err := w.dir.Check("a"); err == nil {
		t.Error("claims are prepared beside it")
	}
	w.control.set(func(c *fakeControl) { c.stillborn = false })
	d.set(func(d *fakeDevice) { d.pids = nil })
	w.pass(func() bool { return w.status("a").State == mps.Ready }, "the card is MPS' again")
	if d.is() != gpu.ComputeExclusiveProcess || w.control.server("a") == 0 {
		t.Errorf("compute mode %s, server %d", d.is(), w.control.server("a"))
	}
	// What is put back in the end is what was there before either of them.
	w.uses(mps.Use{Reserved: true})
	w.end()
	w.awaitMode(d, gpu.ComputeDefault)
}
