// SPDX-License-Identifier: Apache-2.0

//go:build hardware

package hardware

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
	gpunvml "github.com/gpushare/dra-driver-gpushare/pkg/gpu/nvml"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/mps"
	"github.com/gpushare/dra-driver-gpushare/tests/harness"
)

const (
	pipeVariable   = "CUDA_MPS_PIPE_DIRECTORY"
	memoryVariable = "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"
	threadVariable = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"
)

// status is that of the GPU's daemon.
func (s *step) status() mps.Status {
	s.Helper()
	status, err := here.mps().Status(here.gpu().UUID)
	s.must(err)
	return status
}

// eventually waits until the GPU's daemon tells what it has to.
func (s *step) eventually(what string, is func(mps.Status) bool) mps.Status {
	s.Helper()
	var status mps.Status
	harness.Eventually(s.T, what, func(context.Context) (err error) {
		if status, err = here.mps().Status(here.gpu().UUID); err == nil && !is(status) {
			err = fmt.Errorf("the status is %+v", status)
		}
		return err
	})
	return status
}

// served waits until the GPU's clients are limited, by a daemon that has been started again so often.
func (s *step) served(restarts int) {
	s.Helper()
	s.eventually("the MPS control daemon to serve", func(status mps.Status) bool {
		return status.Restarts >= restarts && here.mps().Check(here.gpu().UUID) == nil
	})
}

// daemon is the MPS control daemon of the GPU, and server the daemon's.
func (s *step) daemon() *os.Process { return here.MPSDaemon(s.T, here.node, here.gpu().UUID) }
func (s *step) server() *os.Process { return here.MPSServer(s.T, here.node, here.gpu().UUID) }

// daemonKilled kills the GPU's daemon while a client is busy. No program may run unlimited.
func daemonKilled(s *step) {
	s.shared("pod with a share", "mps", 2, 0, pod{name: "before"})
	before := s.status().Restarts
	client := s.running("before", "spin", "5")
	client.goOn()
	s.must(s.daemon().Kill())
	killed := time.Now()
	s.create(pod{name: "after", template: "before"})
	s.served(before + 1)
	s.began = killed
	s.came("the daemon, after its end by SIGKILL", "serves again")
	s.ns.WaitRunning(s.T, "after")
	s.began = killed
	s.came("pod that was created while it was down", "Running")
	s.seen("the client that was busy", "fails at its next kernel", told(client.line()))
	s.isLimited("after", 2)
}

// socketRemoved removes what root in a container of an earlier version may remove: the program before goes on, and the
// one after is limited.
func socketRemoved(s *step) {
	s.shared("pod with a share", "mps", limitedUnits, 0, pod{name: "pipes"})
	before := s.status().Restarts
	running := s.running("pipes", "alloc", fmt.Sprint(here.capMiB(limitedUnits)/2))
	pipes, err := os.ReadDir(here.mps().PipeDir(here.gpu().UUID))
	s.must(err)
	var names []string
	for _, entry := range pipes {
		names = append(names, entry.Name())
		s.must(os.RemoveAll(filepath.Join(here.mps().PipeDir(here.gpu().UUID), entry.Name())))
	}
	s.same("files that containers have of the daemon", mps.SocketName, strings.Join(names, " "))
	s.clock()
	s.served(before)
	s.came("the socket, after it was removed", "is back")
	s.same("a program that was connected before", granted, told(running.next()))
	s.same("restarts of the daemon", fmt.Sprint(before), fmt.Sprint(s.status().Restarts))
	s.isLimited("pipes", limitedUnits)
}

// fault has one program write where no memory is. What NVIDIA's documents say of the others is to be seen, and whether
// the supervisor tells of it: that all are lost, and when the GPU serves again.
func fault(s *step) {
	s.shared("two pods with shares of one GPU", "mps", 2, 0, pod{name: "faulty"}, pod{name: "neighbour"})
	before := s.status()
	neighbour := s.running("neighbour", "alloc", "1")
	s.seen("a program that writes where no memory is", "", s.cuda("faulty", "fault"))
	during := s.eventually("the supervisor to tell of the fault", func(now mps.Status) bool {
		return now.Fault != nil && (before.Fault == nil || !now.Fault.Seen.Equal(before.Fault.Seen))
	})
	s.seen("the fault, as the supervisor tells of it", "", during.Fault.Tell(mps.Client.String))
	answer := told(neighbour.next())
	s.check("another program on the GPU, after it", "lost with it", answer, strings.Contains(answer, "CUDA_ERROR_"))
	after := s.eventually("the end of the fault", func(now mps.Status) bool {
		return now.Fault != nil && !now.Fault.Over.IsZero()
	})
	s.check("the GPU serves again, when both programs have ended", "by the same daemon",
		fmt.Sprintf("after %s, %d restarts more", after.Fault.Over.Sub(after.Fault.Seen), after.Restarts-before.Restarts),
		after.Restarts == before.Restarts)
	s.isLimited("faulty", 2)
}

// device is a GPU of the last reading, of the one that tests are about.
func (s *step) device() *gpunvml.Device {
	s.Helper()
	reader := here.reader()
	_, err := reader.Read(s.Context())
	s.must(err)
	device, err := reader.Device(here.gpu().UUID)
	s.must(err)
	return device
}

func serverFirst(s *step) {
	server, device := s.server(), s.device()
	mode, err := device.ComputeMode(s.Context())
	s.must(err)
	s.same("compute mode under MPS", gpu.ComputeExclusiveProcess.String(), mode.String())
	uses, err := gpunvml.NewUses(gpunvml.OpenOptions{LibraryPath: here.driver.NVML}).Read(s.Context())
	s.must(err)
	idle := "not listed"
	for _, use := range uses {
		for _, p := range use.Processes {
			if use.UUID == here.gpu().UUID && p.PID == server.Pid {
				idle = fmt.Sprintf("%d MiB", p.MemoryMiB)
			}
		}
	}
	s.check("MPS server without clients", "on the GPU", idle, idle != "not listed" || here.simulated != "")
}

// refused checks that a CUDA program does not run.
func (s *step) refused(what, pod string, args ...string) {
	answer, err := s.try(pod, args...)
	s.check(what, "refused", told(answer, err), err != nil)
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
	s.eventually("the daemon to hold all programs to the largest share", func(now mps.Status) bool {
		return now.InForce.MemoryMiB == most
	})
	v := s.view(s.cuda("small", "-u", memoryVariable, "-u", threadVariable, "meminfo"))
	s.check("program without limits, "+when, fmt.Sprintf("at most %d MiB free", most), v.String(), v.freeMiB <= most)
}

// nothingWithoutServer ends daemon and server in turn. No program runs until both are back, and then those of all users
// do.
func nothingWithoutServer(s *step) {
	s.shared("pods of root and of two users", "mps", 2, 0, pod{name: "root", enforced: true},
		pod{name: "a", uid: 1001}, pod{name: "b", uid: 1002})
	victims := map[string]func() *os.Process{"daemon": s.daemon, "server": s.server}
	for _, name := range []string{"daemon", "server"} {
		before, process := s.status().Restarts, victims[name]()
		s.clock()
		s.must(process.Kill())
		refusals := 0
		harness.Eventually(s.T, "the "+name+" to be back", func(context.Context) error {
			answer, err := s.try("root", "meminfo")
			if err == nil {
				// The one before it may still have answered; none runs without its limits.
				if v := s.view(answer); v.freeMiB > here.capMiB(2) {
					s.Errorf("after the end of the %s a program runs beside MPS: %s", name, v)
				}
			} else {
				refusals++
			}
			if status := s.status(); status.Restarts <= before {
				return fmt.Errorf("it was started again %d times, and is %s", status.Restarts-before, status.State)
			}
			return errors.Join(err, here.mps().Check(here.gpu().UUID))
		})
		s.check(name+" killed", "no program runs until it is back", fmt.Sprintf("%d refused", refusals), !s.Failed())
		for _, user := range []string{"root", "a", "b"} {
			s.runs("CUDA program of "+user+", after the end of the "+name, user)
		}
		s.refused(fmt.Sprintf("program without %s, after the end of the %s", pipeVariable, name), "root",
			"-u", pipeVariable, "meminfo")
	}
}

// computeModePutBack takes the node out of mode mps.
func computeModePutBack(s *step) {
	found, changed, err := here.mps().FoundMode(here.gpu().UUID)
	if err != nil || !changed {
		s.Fatalf("the supervisor has not written down which compute mode it found: %v", err)
	}
	here.setMode("default")
	s.awaitMode("default")
	s.clock()
	device := s.device()
	harness.Eventually(s.T, "the compute mode to be put back", func(ctx context.Context) error {
		now, err := device.ComputeMode(ctx)
		if err == nil && now != found {
			err = fmt.Errorf("it is %s, and was %s", now, found)
		}
		return err
	})
	s.came("compute mode, when the node has left mode mps", found.String())
}
