// SPDX-License-Identifier: Apache-2.0

package supervisor

import (
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/mps"
)

// A supervisor was killed, and with it the GPU's daemon and server. Until the next one runs
// the first program gets the GPU, which is EXCLUSIVE_PROCESS: all of it. The next one lets it
// have that until it ends, and nobody else in.
func TestProgramThatHadTheGPUBetweenTwoSupervisors(t *testing.T) {
	w, d := guarded(t, gpu.ComputeExclusiveProcess)
	w.uses(claimed)
	expect.NoError(t, w.dir.KeepFoundMode("a", gpu.ComputeDefault))
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
	w.servesAlone(d)
	// What is put back in the end is what was there before either of them.
	w.uses(mps.Use{Reserved: true})
	w.end()
	w.awaitMode(d, gpu.ComputeDefault)
}

// Others come to hold a part of the GPU while the daemon starts for which it was taken: they have it as it was found.
func TestGPUOfOthersWhileTheDaemonStarts(t *testing.T) {
	w, d := guarded(t, gpu.ComputeDefault)
	limits := mps.Limits{MemoryMiB: 1024, ThreadPercent: 25}
	w.uses(mps.Use{Reserved: true}.With(limits))
	told := make(chan error, 1)
	var first sync.Once
	w.control.onStart = func(string) {
		first.Do(func() { told <- w.dir.SetUse("a", mps.Use{Beside: true}.With(limits)) })
	}
	w.run()
	w.pass(func() bool { return w.status("a").State == mps.Ready }, "MPS is beside them")
	expect.NoError(t, <-told)
	if _, known, err := w.dir.FoundMode("a"); known || err != nil || d.is() != gpu.ComputeDefault ||
		w.status("a").DriverEnforced {
		t.Errorf("compute mode %s, to be put back %t (%v), status %+v", d.is(), known, err, w.status("a"))
	}
	// When they have ended it is MPS' alone, as ever.
	w.uses(mps.Use{Reserved: true}.With(limits))
	w.awaitMode(d, gpu.ComputeExclusiveProcess)
	w.pass(func() bool { return w.status("a").DriverEnforced }, "nobody else comes")
	w.uses(mps.Use{})
	w.awaitMode(d, gpu.ComputeDefault)
}

// Pods of a device plugin hold a part of the GPU: their programs, and the next ones, run beside claims, which MPS
// holds to their shares. When they have ended the GPU is MPS' alone, with the clients that it has.
func TestClaimsBesidePodsOfADevicePlugin(t *testing.T) {
	w, d := guarded(t, gpu.ComputeDefault)
	const theirs, client = 4711, 4712
	d.pids = []int{theirs}
	w.run()
	w.pass(func() bool { return w.status("a").State == mps.Down }, "their program keeps MPS off")
	w.uses(mps.Use{Beside: true})
	w.pass(func() bool { return w.status("a").State == mps.Ready }, "MPS is beside it")
	for _, mib := range []int64{1024, 2048} {
		w.admit(mib, 25)
		if s := w.status("a"); d.is() != gpu.ComputeDefault || s.DriverEnforced || s.InForce.MemoryMiB != mib {
			t.Errorf("compute mode %s, status %+v", d.is(), s)
		}
	}
	if modes := d.was(); len(modes) > 0 {
		t.Errorf("the compute mode was set to %s", modes)
	}
	// A client has had the daemon start a server.
	server := w.control.startByClient("a", fmt.Sprint(client))
	d.set(func(d *fakeDevice) { d.pids = []int{server, client} })
	w.uses(mps.Use{Reserved: true}.With(mps.Limits{MemoryMiB: 2048, ThreadPercent: 25}))
	w.awaitMode(d, gpu.ComputeExclusiveProcess)
	w.pass(func() bool { return w.status("a").DriverEnforced }, "nobody else comes")
	expect.Equal(t, server, w.control.server("a"), "the server is")
	// Claims that were there first keep the GPU.
	w.uses(mps.Use{Beside: true}.With(mps.Limits{MemoryMiB: 1024, ThreadPercent: 25}))
	w.pass(func() bool { s := w.status("a"); return s.Use != nil && s.Use.Beside }, "it knows of others again")
	if s := w.status("a"); d.is() != gpu.ComputeExclusiveProcess || !s.DriverEnforced || w.control.server("a") != server {
		t.Errorf("compute mode %s, server %d, status %+v", d.is(), w.control.server("a"), s)
	}
	w.control.set(func(c *fakeControl) { c.clients = "" })
	w.uses(mps.Use{Beside: true})
	w.awaitMode(d, gpu.ComputeDefault)
}
