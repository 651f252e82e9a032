// SPDX-License-Identifier: Apache-2.0

package supervisor

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/mps"
)

// reading has the GPUs read as that from now on: these, and those that are lost.
func (w *world) reading(lost []string, uuids ...string) {
	w.has(uuids...)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.machine.Faults = nil
	for _, uuid := range lost {
		w.machine.Faults = append(w.machine.Faults, gpu.Fault{Index: len(uuids), UUID: uuid})
	}
}

func (w *world) timesRead() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.reads
}

// lose has GPU a not answer any more, and with it the server of all GPUs end.
func (w *world) lose() {
	w.device("a").set(func(d *fakeDevice) { d.err = errors.New("GPU is lost") })
	w.node.endServer("a,b")
}

// serving is a world whose one daemon serves two GPUs that are used like that.
func serving(t *testing.T, use mps.Use) *world {
	t.Helper()
	w := together(t, "a", "b")
	w.usesOfNode(use, "a", "b")
	w.run()
	w.ofNode(mps.Ready, "", "a", "b")
	return w
}

// servesWithout passes the time until the one daemon serves GPU b alone.
func (w *world) servesWithout() {
	w.t.Helper()
	w.pass(func() bool { return len(w.node.started("b")) > 0 }, "a daemon is started without the lost GPU")
	w.ofNode(mps.Ready, "", "b")
}

// A GPU that is lost ends the one daemon, as it has a context there, and the next one serves the others. It has the GPU
// again when that answers, and no claim would end with it.
func TestOneDaemonAndAGPUThatIsLost(t *testing.T) {
	for name, lost := range map[string][]string{"a fault": {"a"}, "not there": nil} {
		t.Run(name, func(t *testing.T) {
			w := serving(t, claimed)
			w.reading(lost, "b")
			w.lose()
			w.servesWithout()
			w.awaitModes(gpu.ComputeExclusiveProcess, "b")
			if starts := w.node.started("b"); len(starts) != 1 || w.dir.OfNode().Check("a") == nil {
				t.Errorf("%d starts without the GPU; it can be used: %t", len(starts), w.dir.OfNode().Check("a") == nil)
			}
			w.neverOpen("b")

			w.device("a").set(func(d *fakeDevice) { d.err = nil })
			before := w.timesRead()
			w.reading(nil, "a", "b")
			w.pass(func() bool { return w.timesRead() > before }, "the GPUs are read again")
			w.manyLooks()
			expect.NoErrorf(t, w.node.started("b")[0].err, "the clients of the other GPU have ended")
			w.usesOfNode(mps.Use{Reserved: true}, "a", "b")
			w.ofNode(mps.Ready, "", "a", "b")
			w.awaitModes(gpu.ComputeExclusiveProcess, "a", "b")
		})
	}
}

// A GPU may be lost while the server lives, as where no program runs on it. The daemon ends for that when no claim uses
// it: programs on the other GPUs go on till then.
func TestOneDaemonThatLosesAGPUAndNotItsServer(t *testing.T) {
	for name, use := range map[string]mps.Use{"without claims": {Reserved: true}, "with claims": claimed} {
		t.Run(name, func(t *testing.T) {
			w := serving(t, use)
			w.reading([]string{"a"}, "b")
			w.device("a").set(func(d *fakeDevice) { d.err = errors.New("GPU is lost") })
			if use.Claimed {
				w.ofNode(mps.Down, "GPU is lost", "a", "b")
				w.manyLooks()
				if w.node.server("a,b") == 0 || len(w.node.started("b")) > 0 {
					t.Error("the clients of the other GPU have ended")
				}
				w.usesOfNode(mps.Use{Reserved: true}, "a", "b")
			}
			w.servesWithout()
			w.device("a").set(func(d *fakeDevice) { d.err = nil })
			w.reading(nil, "a", "b")
			w.ofNode(mps.Ready, "", "a", "b")
		})
	}
}

// A GPU that is missing in one reading, as while it is reset, is not left out.
func TestAGPUThatIsMissingForAMoment(t *testing.T) {
	w := serving(t, claimed)
	w.reading([]string{"a"}, "b")
	before := w.timesRead()
	w.lose()
	w.pass(func() bool { return w.timesRead() > before }, "the GPUs are read")
	w.device("a").set(func(d *fakeDevice) { d.err = nil })
	w.reading(nil, "a", "b")
	w.ofNode(mps.Ready, "", "a", "b")
	expect.Equal(t, 0, len(w.node.started("b")), "daemons were started without the GPU")
}

// While the daemon without the lost GPU waits, nothing ends with it where the GPU comes back, whatever the claims are.
func TestAGPUThatComesBackWhileTheDaemonWaits(t *testing.T) {
	w := serving(t, claimed)
	foreign := func(pids ...int) {
		w.device("b").set(func(d *fakeDevice) { d.pids = pids })
		w.node.set(func(c *fakeControl) { c.stillborn = len(pids) > 0 })
	}
	foreign(4711)
	w.reading([]string{"a"}, "b")
	w.lose()
	w.pass(func() bool { return len(w.node.started("b")) > 0 }, "a daemon is started without the lost GPU")
	w.ofNode(mps.Down, "4711", "b")
	w.device("a").set(func(d *fakeDevice) { d.err = nil })
	before := w.timesRead()
	w.reading(nil, "a", "b")
	w.pass(func() bool { return w.timesRead() > before }, "the GPUs are read again")
	w.manyLooks()
	foreign()
	w.ofNode(mps.Ready, "", "a", "b")
	w.awaitModes(gpu.ComputeExclusiveProcess, "a", "b")
	w.neverOpen("b")
}

// Where it is not known what the GPUs are used for, none is opened by a daemon without the lost one.
func TestUsesThatAreLostWithAGPU(t *testing.T) {
	w := serving(t, claimed)
	w.reading([]string{"a"}, "b")
	for _, uuid := range []string{"a", "b"} {
		expect.NoError(t, os.Remove(filepath.Join(w.dir.OfNode().Files(uuid), mps.UseFile)))
	}
	w.lose()
	w.manyLooks()
	expect.Equal(t, 0, len(w.node.started("b")), "daemons were started without the GPU")
	w.usesOfNode(claimed, "a", "b")
	w.servesWithout()
	w.neverOpen("b")
}

// While a daemon waits for something else than a GPU, they are not read without end.
func TestOneDaemonThatWaitsReadsTheGPUsRarely(t *testing.T) {
	w := together(t, "a", "b")
	w.device("b").pids = []int{4711}
	began := w.clock.Now()
	w.run()
	w.ofNode(mps.Down, "process 4711", "a", "b")
	w.manyLooks()
	if reads, most := w.timesRead(), 2+int(w.clock.Since(began)/rereadInterval); reads > most {
		t.Errorf("read %d times, want %d at most", reads, most)
	}
}

// What was set of a GPU that is lost is not put back by starting and ending daemons without end.
func TestNoDaemonIsStartedToPutALostGPUBack(t *testing.T) {
	w := serving(t, mps.Use{Reserved: true})
	w.reading([]string{"a"}, "b")
	w.lose()
	w.servesWithout()
	w.usesOfNode(mps.Use{}, "a", "b")
	w.wantNodeDaemon(false)
	w.ofNode(mps.Down, nodeIdle, "b")
	w.manyLooks()
	expect.Equal(t, 1, len(w.node.started("b")), "starts")
	w.device("a").set(func(d *fakeDevice) { d.err = nil })
	w.reading(nil, "a", "b")
	w.awaitModes(gpu.ComputeDefault, "a", "b")
}
