// SPDX-License-Identifier: Apache-2.0

//go:build gpu

package gpu

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/gpushare/dra-driver-gpushare/pkg/mode"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/mps"
)

const (
	granted     = "granted"
	outOfMemory = "CUDA_ERROR_OUT_OF_MEMORY"
	// units leave room for half of them beside a CUDA context.
	units = 4
	// spinSeconds is how long throughput is measured.
	spinSeconds = "3"
)

// CUDA programs under the supervisor, with what Prepare gives to a container.
// Nothing else should use the GPU. Lines with "|" make the table of
// docs/internals/hardware.md.
func TestMPS(t *testing.T) {
	m := openMPSNode(t)
	found := m.computeMode(t)
	end := m.supervise(t)
	report(t, "what", "granted", "observed", "deviation or error")
	t.Run("AllocationsEndAtTheCap", m.testAllocations)
	t.Run("WhatTheCapDoesNotCount", m.testNotCounted)
	t.Run("ComputeIsSharedAsGranted", m.testThroughput)
	t.Run("UsersRunTogether", m.testUsers)
	t.Run("ClientsCannotEndTheDaemon", m.testQuit)
	t.Run("RemovedPipesArePutBack", m.testPipesRemoved)
	t.Run("FaultEndsAllClients", m.testFault)
	t.Run("ServerIsThereBeforeItsClients", m.testServerBeforeClients)
	t.Run("NobodyIsBesideMPS", m.testNobodyBeside)
	t.Run("NobodyGetsMoreThanTheLargestShare", m.testLargestShare)
	t.Run("NothingStartsWithoutAServer", m.testNothingStartsWithoutServer)
	t.Run("NoNewWorkWithoutTheSupervisor", func(t *testing.T) { end = m.testSupervisorKilled(t, end) })
	t.Run("ComputeModeIsPutBack", func(t *testing.T) { m.testComputeModePutBack(t, end, found) })
}

func report(t *testing.T, what, granted, observed, deviation string) {
	t.Helper()
	t.Logf("| %s | %s | %s | %s |", what, granted, observed, deviation)
}

func (m *mpsNode) testAllocations(t *testing.T) {
	s := m.grant(t, mode.MPS, units, 0)
	seen := parseView(t, m.run(t, s, "meminfo"))
	seen.checkLimited(t, s)
	report(t, fmt.Sprintf("free memory, as a program with %d SMs sees it", seen.sms), mib(s.capMiB), mib(seen.freeMiB),
		fmt.Sprintf("%+d MiB (CUDA context)", seen.freeMiB-s.capMiB))
	m.checkAllocation(t, s, s.capMiB/2, granted)
	m.checkAllocation(t, s, s.capMiB+1, outOfMemory)
}

func (m *mpsNode) checkAllocation(t *testing.T, s share, size int64, want string) {
	t.Helper()
	got := m.run(t, s, "alloc", fmt.Sprint(size))
	observed, failure := "refused", got
	if got == granted {
		observed, failure = granted, "none"
	}
	report(t, "allocation of "+mib(size), mib(s.capMiB), observed, failure)
	if got != want {
		t.Errorf("an allocation of %d MiB under a cap of %d MiB: %s, want %s", size, s.capMiB, got, want)
	}
}

// What NVIDIA's documents leave open is reported, whatever it is: docs/internals/isolation.md goes by it.
func (m *mpsNode) testNotCounted(t *testing.T) {
	s := m.grant(t, mode.MPS, units, 0)
	filler := m.start(t, s, 0, "fill", "managed", fmt.Sprint(s.capMiB+1024))
	filler.goOn()
	report(t, "managed memory, "+mib(s.capMiB+1024), mib(s.capMiB), filler.line(), "none")
	filler.goOn()
	filler.answer()

	exporter := m.start(t, s, 0, "export", fmt.Sprint(s.capMiB/2))
	exporter.goOn()
	handle := exporter.line()
	small := m.grant(t, mode.MPS, 1, 0)
	importer := m.start(t, small, 0, "import", handle)
	importer.goOn()
	report(t, "memory of another container by CUDA IPC, "+mib(s.capMiB/2), mib(small.capMiB), importer.answer(), "none")
	exporter.goOn()
	if err := exporter.cmd.Wait(); err != nil {
		t.Errorf("the program whose memory was imported: %v", err)
	}
}

func (m *mpsNode) testThroughput(t *testing.T) {
	alone := m.grant(t, mode.CoreMem, units, 100)
	whole := m.spin(t, spinner{alone, 0})[0]
	report(t, "throughput alone", "100 %", whole.String(), "taken as 100 %")
	m.release(t, alone)

	const small, large = 25, 75
	seen := m.spin(t, spinner{m.grant(t, mode.CoreMem, units, small), 0},
		spinner{m.grant(t, mode.CoreMem, units, large), 0})
	for i, percent := range []float64{small, large} {
		observed := seen[i].rate / whole.rate * 100
		report(t, "throughput beside the other", fmt.Sprintf("%g %%", percent), fmt.Sprintf("%.1f %%: %s", observed, seen[i]),
			fmt.Sprintf("%+.1f points", observed-percent))
		if observed < percent/2 {
			t.Errorf("a program with %g %% of the GPU has %.1f %% of its throughput: it is starved", percent, observed)
		}
	}
	if ratio := seen[1].rate / seen[0].rate; ratio < 1.5 {
		t.Errorf("%d %% of the GPU have %.1f times the throughput of %d %%", large, ratio, small)
	}
}

// Without a server for all users, the second waits until the first has left,
// which it never does before the second is ready.
func (m *mpsNode) testUsers(t *testing.T) {
	uids := []uint32{1001, 1002}
	var spinners []spinner
	for _, uid := range uids {
		spinners = append(spinners, spinner{m.grant(t, mode.MPS, units, 0), uid})
	}
	for i, seen := range m.spin(t, spinners...) {
		report(t, fmt.Sprintf("program of uid %d beside another's", uids[i]), "runs", seen.String(), "none")
	}
}

// With what a container has of the daemon, even root cannot tell it to quit.
func (m *mpsNode) testQuit(t *testing.T) {
	s := m.grant(t, mode.MPS, units, 0)
	cmd := exec.CommandContext(t.Context(), filepath.Join(m.driverRoot, m.control))
	cmd.Env = append(slices.Clone(s.container.Process.Env), "LD_LIBRARY_PATH="+m.libraryPath)
	var output bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader("quit\n"), &output, &output
	if err := withMounts(m.pipes(s), cmd.Start); err != nil {
		t.Fatal(err)
	}
	// How it ended does not matter.
	_ = cmd.Wait()
	said := strings.TrimSpace(output.String())
	if !strings.Contains(said, "Not enough privilege") {
		t.Errorf("the daemon said %q", said)
	}
	if err := m.dir.Check(m.gpu.UUID); err != nil {
		t.Errorf("the daemon does not serve: %v", err)
	}
	m.checkAllocation(t, s, s.capMiB+1, outOfMemory)
	report(t, "quit by root in a container", "nothing", "refused", said)
}

// What root in a container of an earlier version may remove is put back while programs
// run, of which the one before does not notice, and the one after is limited.
func (m *mpsNode) testPipesRemoved(t *testing.T) {
	s := m.grant(t, mode.MPS, units, 0)
	before := m.start(t, s, 0, "alloc", fmt.Sprint(s.capMiB/2))
	status, err := m.dir.Status(m.gpu.UUID)
	if err != nil {
		t.Fatal(err)
	}
	pipes, err := filepath.Glob(filepath.Join(m.dir.PipeDir(m.gpu.UUID), "*"))
	if err != nil {
		t.Fatal(err)
	}
	if got := base(pipes); !slices.Equal(got, []string{mps.SocketName}) {
		t.Errorf("clients have %q; a program that runs made some of it", got)
	}
	for _, path := range pipes {
		if err := os.RemoveAll(path); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := m.prepare(t, mode.MPS, units, 0); err == nil {
		t.Log("the pipes were back before a claim could be prepared")
	} else {
		report(t, "new claim, pipes removed", "nothing", "refused", err.Error())
	}
	m.awaitDaemon(t)
	before.goOn()
	if got := before.answer(); got != granted {
		t.Errorf("a program that was connected before: %s", got)
	}
	m.checkAllocation(t, s, s.capMiB+1, outOfMemory)
	if after, err := m.dir.Status(m.gpu.UUID); err != nil || after.Restarts != status.Restarts {
		t.Errorf("the daemon was started again: %+v (%v)", after, err)
	}
	report(t, "pipes removed and put back", strings.Join(base(pipes), " "), "programs before and after run", "none")
}

func base(paths []string) []string {
	var names []string
	for _, path := range paths {
		names = append(names, filepath.Base(path))
	}
	return names
}

// testSupervisorKilled returns how the next supervisor is ended, which outlives the test.
func (m *mpsNode) testSupervisorKilled(t *testing.T, end func(os.Signal)) func(os.Signal) {
	end(os.Kill)
	_, err := m.prepare(t, mode.MPS, units, 0)
	if err == nil || !strings.Contains(err.Error(), "gpu-mps-supervisor does not run") {
		t.Fatalf("prepared without a supervisor: error %v", err)
	}
	report(t, "new claim, supervisor killed", "nothing", "refused", err.Error())

	end = m.supervise(m.t)
	s := m.grant(t, mode.MPS, units, 0)
	report(t, "new claim, supervisor back", mib(s.capMiB), "prepared", "none")
	m.checkAllocation(t, s, s.capMiB/2, granted)
	m.checkAllocation(t, s, s.capMiB+1, outOfMemory)
	return end
}

// spinner is a program that keeps the GPU busy.
type spinner struct {
	share share
	uid   uint32
}

// spin has the programs connected at the same time, and then busy at the same
// time. They have to get on, under their limits.
func (m *mpsNode) spin(t *testing.T, spinners ...spinner) []view {
	t.Helper()
	var programs []*program
	for _, s := range spinners {
		programs = append(programs, m.start(t, s.share, s.uid, "spin", spinSeconds))
	}
	for _, p := range programs {
		p.goOn()
	}
	var views []view
	for i, p := range programs {
		v := parseView(t, p.answer())
		v.checkLimited(t, spinners[i].share)
		if v.rate <= 0 {
			t.Errorf("program %d does not get on: %s", i, v)
		}
		views = append(views, v)
	}
	return views
}

// view is what a program sees of the GPU.
type view struct {
	freeMiB, totalMiB, sms int64
	rate                   float64 // in kernels per second, of a program that spins
}

func parseView(t *testing.T, answer string) view {
	t.Helper()
	var v view
	n, err := fmt.Sscanf(answer, "free %d total %d sms %d rate %f", &v.freeMiB, &v.totalMiB, &v.sms, &v.rate)
	if n < 3 {
		t.Fatalf("a program said %q: %v", answer, err)
	}
	return v
}

func (v view) String() string { return fmt.Sprintf("%.1f kernels/s on %d SMs", v.rate, v.sms) }

// checkLimited checks that the program was a client of MPS: one that finds no
// daemon runs beside it, without a word, and then more is free.
func (v view) checkLimited(t *testing.T, s share) {
	t.Helper()
	if v.freeMiB > s.capMiB {
		t.Errorf("%d MiB are free, beyond the cap of %d MiB: the program is not limited", v.freeMiB, s.capMiB)
	}
}

func mib(n int64) string { return fmt.Sprintf("%d MiB", n) }
