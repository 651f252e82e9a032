// SPDX-License-Identifier: Apache-2.0

//go:build hardware

package hardware

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/mps"
	"github.com/gpushare/dra-driver-gpushare/tests/harness"
)

const (
	pipeVariable   = "CUDA_MPS_PIPE_DIRECTORY"
	memoryVariable = "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"
	threadVariable = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"
)

func needsEnforced() string {
	if !here.mps().DriverEnforced(here.gpu().UUID) {
		return "the driver lets nobody here set the compute mode"
	}
	return ""
}

// status is that of the GPU's daemon.
func (s *step) status() mps.Status {
	s.Helper()
	status, err := here.mps().Status(here.gpu().UUID)
	if err != nil {
		s.Fatal(err)
	}
	return status
}

// served waits until the GPU's clients are limited, by a daemon that has been started again so often.
func (s *step) served(restarts int) {
	s.Helper()
	harness.Eventually(s.T, "the MPS control daemon to serve", func(context.Context) error {
		status, err := here.mps().Status(here.gpu().UUID)
		if err == nil && status.Restarts < restarts {
			err = fmt.Errorf("it was started again %d times, and is %s", status.Restarts, status.State)
		}
		return errors.Join(err, here.mps().Check(here.gpu().UUID))
	})
}

// daemon is the MPS control daemon of the GPU, as a child of the supervisor, and server the daemon's.
func (s *step) daemon() process {
	s.Helper()
	supervisor := here.Supervisor(s.T, here.node)
	return s.process("MPS control daemon", func(p process) bool {
		return p.parent == supervisor.Pid && strings.Contains("\x00"+p.environ,
			"\x00CUDA_VISIBLE_DEVICES="+here.gpu().UUID+"\x00")
	})
}

func (s *step) server() process {
	s.Helper()
	daemon := s.daemon()
	return s.process("MPS server", func(p process) bool { return p.parent == daemon.pid })
}

// daemonKilled kills the GPU's daemon while a client is busy. No program may run unlimited.
func daemonKilled(s *step) {
	s.shared("pod with a share", "mps", 2, 0, pod{name: "before"})
	before := s.status().Restarts
	client, err := s.launch("before", "main", "spin", "5")
	if err != nil {
		s.Fatal(err)
	}
	client.goOn()
	s.daemon().kill(s)
	killed := time.Now()
	s.create(pod{name: "after", template: "before"})
	s.served(before + 1)
	s.began = killed
	s.check("the daemon, after its end by SIGKILL", "serves again", "serves again", true)
	s.ns.WaitRunning(s.T, "after")
	s.began = killed
	s.check("pod that was created while it was down", "Running", "Running", true)
	answer, err := client.line()
	if err != nil {
		answer = err.Error()
	}
	s.seen("the client that was busy", "fails at its next kernel", answer)
	s.isLimited("after", 2)
}

// socketRemoved removes what root in a container of an earlier version may remove: the program before goes on, and the
// one after is limited.
func socketRemoved(s *step) {
	s.shared("pod with a share", "mps", limitedUnits, 0, pod{name: "pipes"})
	before := s.status().Restarts
	running, err := s.launch("pipes", "main", "alloc", fmt.Sprint(here.capMiB(limitedUnits)/2))
	if err != nil {
		s.Fatal(err)
	}
	pipes, err := os.ReadDir(here.mps().PipeDir(here.gpu().UUID))
	if err != nil {
		s.Fatal(err)
	}
	var names []string
	for _, entry := range pipes {
		names = append(names, entry.Name())
		if err := os.RemoveAll(filepath.Join(here.mps().PipeDir(here.gpu().UUID), entry.Name())); err != nil {
			s.Fatal(err)
		}
	}
	s.check("files that containers have of the daemon", mps.SocketName, strings.Join(names, " "),
		slices.Equal(names, []string{mps.SocketName}))
	s.clock()
	s.served(before)
	s.check("the socket, after it was removed", "is back", "is back", true)
	answer, err := running.next()
	if err != nil {
		answer = err.Error()
	}
	s.check("a program that was connected before", granted, answer, answer == granted)
	s.check("the daemon", "is the same", fmt.Sprintf("%d restarts more", s.status().Restarts-before),
		s.status().Restarts == before)
	s.isLimited("pipes", limitedUnits)
}

// fault has one program write where no memory is. What NVIDIA's documents say of the others is to be seen, and whether
// the supervisor tells of it: that all are lost, and when the GPU serves again.
func fault(s *step) {
	s.shared("two pods with shares of one GPU", "mps", 2, 0, pod{name: "faulty"}, pod{name: "neighbour"})
	before := s.status()
	neighbour, err := s.launch("neighbour", "main", "alloc", "1")
	if err != nil {
		s.Fatal(err)
	}
	s.seen("a program that writes where no memory is", "", s.cuda("faulty", "fault"))
	var seen *mps.Fault
	harness.Eventually(s.T, "the supervisor to tell of the fault", func(context.Context) error {
		status, err := here.mps().Status(here.gpu().UUID)
		if seen = status.Fault; err == nil && (seen == nil || before.Fault != nil && seen.Seen.Equal(before.Fault.Seen)) {
			err = fmt.Errorf("the status is %+v", status)
		}
		return err
	})
	s.seen("the fault, as the supervisor tells of it", "", seen.Tell(mps.Client.String))
	answer, err := neighbour.next()
	if err != nil {
		answer = err.Error()
	}
	s.check("another program on the GPU, after it", "lost with it", answer, strings.Contains(answer, "CUDA_ERROR_"))
	harness.Eventually(s.T, "the end of the fault", func(context.Context) error {
		status, err := here.mps().Status(here.gpu().UUID)
		if err == nil && (status.Fault == nil || status.Fault.Over.IsZero()) {
			err = fmt.Errorf("the status is %+v", status)
		}
		return err
	})
	after := s.status()
	s.check("the GPU serves again, when both programs have ended", "by the same daemon",
		fmt.Sprintf("after %s, %d restarts more", after.Fault.Over.Sub(after.Fault.Seen), after.Restarts-before.Restarts),
		after.Restarts == before.Restarts)
	s.isLimited("faulty", 2)
}

func (s *step) device() nvml.Device {
	s.Helper()
	device, ret := here.lib.DeviceGetHandleByUUID(here.gpu().UUID)
	if ret != nvml.SUCCESS {
		s.Fatal(ret)
	}
	return device
}

func (s *step) computeMode() gpu.ComputeMode {
	s.Helper()
	mode, ret := s.device().GetComputeMode()
	if ret != nvml.SUCCESS {
		s.Fatal(ret)
	}
	return gpu.ComputeMode(mode)
}

func serverFirst(s *step) {
	server := s.server()
	mode := s.computeMode()
	s.check("compute mode under MPS", gpu.ComputeExclusiveProcess.String(), mode.String(),
		mode == gpu.ComputeExclusiveProcess)
	processes, ret := s.device().GetComputeRunningProcesses()
	if ret != nvml.SUCCESS {
		s.Fatal(ret)
	}
	idle := "not listed"
	for _, p := range processes {
		if int(p.Pid) == server.pid {
			idle = fmt.Sprintf("%d MiB", p.UsedGpuMemory>>20)
		}
	}
	s.check("MPS server without clients", "on the GPU", idle, idle != "not listed" || here.simulated != "")
}

// refused checks that a CUDA program does not run.
func (s *step) refused(what, pod string, args ...string) {
	s.Helper()
	answer, err := s.try(pod, args...)
	if err != nil {
		answer = err.Error()
	}
	s.check(what, "refused", answer, err != nil)
}

func nobodyBeside(s *step) {
	s.shared("pod with a share", "mps", limitedUnits, 0, pod{name: "beside", enforced: true})
	s.refused("program without "+pipeVariable, "beside", "-u", pipeVariable, "meminfo")
	s.isLimited("beside", limitedUnits)
}

// largestShare has programs without their limits: they have those of the GPU's largest share.
func largestShare(s *step) {
	const twice = 2 * limitedUnits
	s.shared("pod with a share of 4 GiB", "mps", limitedUnits, 0, pod{name: "small"})
	s.withoutLimits("alone", limitedUnits)
	s.shared("pod with a share of 8 GiB", "mps", twice, 0, pod{name: "large"})
	s.withoutLimits("beside one of twice its share", twice)
	s.ns.Delete(s.T, "large")
	s.withoutLimits("when that has gone", limitedUnits)
}

func (s *step) withoutLimits(when string, units int64) {
	s.Helper()
	most := here.capMiB(units)
	harness.Eventually(s.T, "the daemon to hold all programs to the largest share", func(context.Context) error {
		status, err := here.mps().Status(here.gpu().UUID)
		if err == nil && status.InForce.MemoryMiB != most {
			err = fmt.Errorf("in force are %+v, want %d MiB", status.InForce, most)
		}
		return err
	})
	v := s.view(s.cuda("small", "-u", memoryVariable, "-u", threadVariable, "meminfo"))
	s.check("program without limits, "+when, fmt.Sprintf("at most %d MiB free", most), v.String(), v.freeMiB <= most)
}

// nothingWithoutServer ends daemon and server in turn. No program runs until both are back, and then those of all users
// do.
func nothingWithoutServer(s *step) {
	s.shared("pods of root and of two users", "mps", 2, 0, pod{name: "root", enforced: true},
		pod{name: "a", uid: 1001}, pod{name: "b", uid: 1002})
	for _, victim := range []struct {
		name string
		is   process
	}{{"daemon", s.daemon()}, {"server", s.server()}} {
		if victim.name == "server" {
			victim.is = s.server()
		}
		before := s.status().Restarts
		s.clock()
		victim.is.kill(s)
		refusals := 0
		harness.Eventually(s.T, "the "+victim.name+" to be back", func(context.Context) error {
			answer, err := s.try("root", "meminfo")
			if err == nil {
				// The one before it may still have answered; none runs without its limits.
				if v := s.view(answer); v.freeMiB > here.capMiB(2) {
					s.Errorf("after the end of the %s a program runs beside MPS: %s", victim.name, v)
				}
			} else {
				refusals++
			}
			if status := s.status(); status.Restarts <= before {
				return fmt.Errorf("it was started again %d times, and is %s", status.Restarts-before, status.State)
			}
			return errors.Join(err, here.mps().Check(here.gpu().UUID))
		})
		s.check(victim.name+" killed", "no program runs until it is back", fmt.Sprintf("%d refused", refusals), !s.Failed())
		for _, name := range []string{"root", "a", "b"} {
			s.runs("CUDA program of "+name+", after the end of the "+victim.name, name)
		}
		s.refused(fmt.Sprintf("program without %s, after the end of the %s", pipeVariable, victim.name), "root",
			"-u", pipeVariable, "meminfo")
	}
}

// computeModePutBack takes the node out of mode mps.
func computeModePutBack(label func(string)) func(*step) {
	return func(s *step) {
		mode, changed, err := here.mps().FoundMode(here.gpu().UUID)
		if err != nil || !changed {
			s.Fatalf("the supervisor has not written down which compute mode it found: %v", err)
		}
		label("default")
		s.awaitMode("default")
		s.clock()
		harness.Eventually(s.T, "the compute mode to be put back", func(context.Context) error {
			if now := s.computeMode(); now != mode {
				return fmt.Errorf("it is %s, and was %s", now, mode)
			}
			return nil
		})
		s.check("compute mode, when the node has left mode mps", mode.String(), mode.String(), true)
	}
}
