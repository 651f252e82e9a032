// SPDX-License-Identifier: Apache-2.0

package supervisor

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"

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
			w := together(t, "a", "b")
			w.usesOfNode(mps.Use{Reserved: true}.With(mps.Limits{MemoryMiB: 1024, ThreadPercent: 100}), "a", "b")
			w.run()
			w.ofNode(mps.Ready, "", "a", "b")
			w.reading(lost, "b")
			w.lose()
			w.servesWithout()
			w.awaitModes(gpu.ComputeExclusiveProcess, "b")
			if starts := w.node.started("b"); len(starts) != 1 || w.dir.OfNode().Check("a") == nil {
				t.Errorf("%d starts without the GPU; it can be used: %t", len(starts), w.dir.OfNode().Check("a") == nil)
			}
			if modes := w.device("b").was(); slices.Contains(modes, gpu.ComputeDefault) {
				t.Errorf("the other GPU was open to everybody: its compute modes were %s", modes)
			}

			w.device("a").set(func(d *fakeDevice) { d.err = nil })
			before := w.timesRead()
			w.reading(nil, "a", "b")
			w.pass(func() bool { return w.timesRead() > before }, "the GPUs are read again")
			w.manyLooks()
			if daemon := w.node.started("b")[0]; daemon.err != nil {
				t.Errorf("the clients of the other GPU have ended: %v", daemon.err)
			}
			w.usesOfNode(mps.Use{Reserved: true}, "a", "b")
			w.ofNode(mps.Ready, "", "a", "b")
			w.awaitModes(gpu.ComputeExclusiveProcess, "a", "b")
		})
	}
}

// Where it is not known what the GPUs are used for, none is opened by a daemon without the lost one.
func TestUsesThatAreLostWithAGPU(t *testing.T) {
	w := together(t, "a", "b")
	claimed := mps.Use{Reserved: true}.With(mps.Limits{MemoryMiB: 1024, ThreadPercent: 100})
	w.usesOfNode(claimed, "a", "b")
	w.run()
	w.ofNode(mps.Ready, "", "a", "b")
	w.reading([]string{"a"}, "b")
	for _, uuid := range []string{"a", "b"} {
		if err := os.Remove(filepath.Join(w.dir.OfNode().Files(uuid), mps.UseFile)); err != nil {
			t.Fatal(err)
		}
	}
	w.lose()
	w.manyLooks()
	if starts := w.node.started("b"); len(starts) > 0 {
		t.Errorf("%d daemons were started without the GPU", len(starts))
	}
	w.usesOfNode(claimed, "a", "b")
	w.servesWithout()
	if modes := w.device("b").was(); slices.Contains(modes, gpu.ComputeDefault) {
		t.Errorf("the other GPU was open to everybody: its compute modes were %s", modes)
	}
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
	w := together(t, "a", "b")
	w.run()
	w.ofNode(mps.Ready, "", "a", "b")
	w.reading([]string{"a"}, "b")
	w.lose()
	w.servesWithout()
	w.usesOfNode(mps.Use{}, "a", "b")
	w.wantNodeDaemon(false)
	w.ofNode(mps.Down, nodeIdle, "b")
	w.manyLooks()
	if starts := len(w.node.started("b")); starts != 1 {
		t.Errorf("%d starts", starts)
	}
	w.device("a").set(func(d *fakeDevice) { d.err = nil })
	w.reading(nil, "a", "b")
	w.awaitModes(gpu.ComputeDefault, "a", "b")
}
