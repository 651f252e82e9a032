// SPDX-License-Identifier: Apache-2.0

//go:build gpu

package gpu

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"golang.org/x/sys/unix"

	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
	"github.com/gpushare/dra-driver-gpushare/pkg/mode"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/mps"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/mps/control"
)

const (
	pipeVariable   = "CUDA_MPS_PIPE_DIRECTORY"
	memoryVariable = "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"
	threadVariable = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"
	// backAfter is how soon a daemon is back that was killed: it is started again a second
	// after it has ended.
	backAfter = 2 * time.Second
)

func (m *mpsNode) device(t *testing.T) nvml.Device {
	t.Helper()
	device, ret := m.lib.DeviceGetHandleByUUID(m.gpu.UUID)
	if ret != nvml.SUCCESS {
		t.Fatal(ret)
	}
	return device
}

func (m *mpsNode) computeMode(t *testing.T) gpu.ComputeMode {
	t.Helper()
	mode, ret := m.device(t).GetComputeMode()
	if ret != nvml.SUCCESS {
		t.Fatal(ret)
	}
	return gpu.ComputeMode(mode)
}

// enforced skips a test where the GPU's compute mode cannot be set.
func (m *mpsNode) enforced(t *testing.T) {
	t.Helper()
	if !m.dir.DriverEnforced(m.gpu.UUID) {
		skip(t, "the driver lets nobody here set the compute mode")
	}
}

// try runs a CUDA program with the environment of the share's container, but for some
// variables. It may fail.
func (m *mpsNode) try(t *testing.T, s share, uid uint32, unset ...string) (answer string, err error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), programLimit)
	defer cancel()
	cmd := exec.CommandContext(ctx, m.probe, "meminfo")
	cmd.Env, cmd.Dir = m.environ(s, unset...), "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}
	// It may fail before it reads.
	input, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer input.Close()
	var output, messages bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = input, &output, &messages
	if err := withMounts(m.pipes(s), cmd.Start); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		return "", fmt.Errorf("%w: %s", err, strings.TrimSpace(messages.String()))
	}
	return strings.TrimPrefix(strings.TrimSpace(output.String()), "ready\n"), nil
}

// refused checks that such a program does not run.
func (m *mpsNode) refused(t *testing.T, what string, s share, unset ...string) {
	t.Helper()
	answer, err := m.try(t, s, 0, unset...)
	if err == nil {
		t.Errorf("%s: the program runs: %s", what, answer)
		return
	}
	report(t, what, "nothing", "refused", err.Error())
}

// server is the process of the GPU's MPS server, as the daemon names it.
func (m *mpsNode) server(t *testing.T) int {
	t.Helper()
	program := &control.Program{Root: m.driverRoot, Path: m.control, LibraryPaths: m.libraries, Dir: m.dir}
	answer, err := program.Ask(t.Context(), m.gpu.UUID, "get_server_list")
	if err != nil {
		t.Fatal(err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(answer))
	if err != nil {
		t.Fatalf("the daemon's servers are %q: %v", answer, err)
	}
	return pid
}

func (m *mpsNode) testServerBeforeClients(t *testing.T) {
	m.enforced(t)
	pid := m.server(t)
	if mode := m.computeMode(t); mode != gpu.ComputeExclusiveProcess {
		t.Errorf("compute mode %s", mode)
	}
	processes, ret := m.device(t).GetComputeRunningProcesses()
	if ret != nvml.SUCCESS {
		t.Fatal(ret)
	}
	idle := "not listed"
	for _, p := range processes {
		if int(p.Pid) == pid {
			idle = mib(int64(p.UsedGpuMemory >> 20))
		}
	}
	if idle == "not listed" && !m.simulated {
		t.Errorf("process %d is not among those on the GPU: %v", pid, processes)
	}
	report(t, "MPS server without clients", "nothing", idle, "none")
}

func (m *mpsNode) testNobodyBeside(t *testing.T) {
	m.enforced(t)
	s := m.grant(t, mode.MPS, units, 0)
	m.refused(t, "program without "+pipeVariable, s, pipeVariable)
	m.checkAllocation(t, s, s.capMiB/2, granted)
}

// Without its limits a program has those of the GPU's largest share.
func (m *mpsNode) testLargestShare(t *testing.T) {
	m.use(t, mps.Use{Reserved: true})
	const small, large = 25, 50
	s := m.grant(t, mode.CoreMem, units, small)
	m.checkWithoutLimits(t, s, "alone", s.capMiB)
	l := m.grant(t, mode.CoreMem, 2*units, large)
	m.checkWithoutLimits(t, s, "beside one of twice its share", l.capMiB)
	m.release(t, l)
	m.use(t, mps.Use{Reserved: true, Claimed: true, Limits: mps.Limits{MemoryMiB: s.capMiB, ThreadPercent: small}})
	m.awaitLimit(t, s.capMiB)
	m.checkWithoutLimits(t, s, "when that has gone", s.capMiB)
}

func (m *mpsNode) checkWithoutLimits(t *testing.T, s share, when string, mostMiB int64) {
	t.Helper()
	m.awaitLimit(t, mostMiB)
	answer, err := m.try(t, s, 0, memoryVariable, threadVariable)
	if err != nil {
		t.Fatal(err)
	}
	seen := parseView(t, answer)
	if seen.freeMiB > mostMiB {
		t.Errorf("%s: %d MiB are free to a program without limits, want at most %d", when, seen.freeMiB, mostMiB)
	}
	report(t, "program without limits, "+when, mib(mostMiB), mib(seen.freeMiB), fmt.Sprintf("%d SMs", seen.sms))
}

// awaitLimit waits until the daemon was told a limit.
func (m *mpsNode) awaitLimit(t *testing.T, limitMiB int64) {
	t.Helper()
	for deadline := time.Now().Add(readyLimit); ; time.Sleep(10 * time.Millisecond) {
		status, err := m.dir.Status(m.gpu.UUID)
		if err == nil && status.InForce.MemoryMiB == limitMiB {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("the limits in force are %+v (%v), want %d MiB", status.InForce, err, limitMiB)
		}
	}
}

// Whatever ends, no program runs until it is back, and then those of all users do.
func (m *mpsNode) testNothingStartsWithoutServer(t *testing.T) {
	m.enforced(t)
	s := m.grant(t, mode.MPS, units, 0)
	for _, victim := range []struct {
		name string
		pid  func() int
	}{{"daemon", func() int { return m.daemon(t) }}, {"server", func() int { return m.server(t) }}} {
		running := m.start(t, s, 0, "meminfo")
		status, err := m.dir.Status(m.gpu.UUID)
		if err != nil {
			t.Fatal(err)
		}
		if err := unix.Kill(victim.pid(), unix.SIGKILL); err != nil {
			t.Fatal(err)
		}
		killed := time.Now()
		m.refusedUntilBack(t, s, victim.name, status.Restarts)
		back := time.Since(killed)
		report(t, victim.name+" killed", backAfter.String(), back.Round(time.Millisecond).String(), "none")
		if back > backAfter+readyLimit {
			t.Errorf("the %s was back after %s", victim.name, back)
		}
		// It fails at its next kernel launch, or runs on; it is of no use any more.
		_ = running.cmd.Process.Kill()
		_ = running.cmd.Wait()
		for _, uid := range []uint32{0, 1001, 1002} {
			if _, err := m.try(t, s, uid); err != nil {
				t.Errorf("after the end of the %s, a program of uid %d: %v", victim.name, uid, err)
			}
		}
		m.refused(t, fmt.Sprintf("program without %s, after the end of the %s", pipeVariable, victim.name), s, pipeVariable)
	}
}

// refusedUntilBack starts programs until the GPU has its next daemon. Of those that do as
// their environment says none may run without its limits. One that does not is refused, as
// long as no server is about to start: that one could be the first to have the GPU.
func (m *mpsNode) refusedUntilBack(t *testing.T, s share, victim string, restarts int) {
	t.Helper()
	// The supervisor sees it within milliseconds.
	for deadline := time.Now().Add(readyLimit); m.dir.Check(m.gpu.UUID) == nil; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("the end of the %s is not told of", victim)
		}
	}
	m.refused(t, fmt.Sprintf("program without %s, %s killed", pipeVariable, victim), s, pipeVariable)
	var refusals []string
	for deadline := time.Now().Add(readyLimit); ; {
		status, err := m.dir.Status(m.gpu.UUID)
		if err == nil && status.Restarts > restarts && m.dir.Check(m.gpu.UUID) == nil {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("the %s is not back after %s: %+v (%v)", victim, readyLimit, status, err)
		}
		answer, err := m.try(t, s, 0)
		if err == nil {
			parseView(t, answer).checkLimited(t, s)
			continue
		}
		if !slices.Contains(refusals, err.Error()) {
			refusals = append(refusals, err.Error())
		}
	}
	report(t, "programs while the "+victim+" is down", "nothing", "refused", strings.Join(refusals, "; "))
}

// daemon is the process of the GPU's control daemon.
func (m *mpsNode) daemon(t *testing.T) int {
	t.Helper()
	content, err := os.ReadFile(m.dir.DaemonDir(m.gpu.UUID) + "/nvidia-cuda-mps-control.pid")
	if err == nil {
		if pid, err := strconv.Atoi(strings.TrimSpace(string(content))); err == nil {
			return pid
		}
	}
	// In the foreground the daemon need not write it: it is its server's parent.
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", m.server(t)))
	if err != nil {
		t.Fatal(err)
	}
	fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
	pid, err := strconv.Atoi(fields[1])
	if err != nil {
		t.Fatal(err)
	}
	return pid
}

func (m *mpsNode) testComputeModePutBack(t *testing.T, end func(os.Signal), found gpu.ComputeMode) {
	m.enforced(t)
	m.use(t, mps.Use{Reserved: true})
	end(syscall.SIGTERM)
	now := m.computeMode(t)
	if now != found {
		t.Errorf("compute mode %s, found %s", now, found)
	}
	report(t, "compute mode after the supervisor", found.String(), now.String(), "none")
}
