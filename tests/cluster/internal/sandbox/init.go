// SPDX-License-Identifier: Apache-2.0

package sandbox

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpushare/dra-driver-gpushare/tests/cluster/internal/proc"
)

// restartDelay is between the end of a service and its next start: short, for
// tests wait for it, but long enough that one which cannot start does not take
// the processor.
const restartDelay = 300 * time.Millisecond

// Init is the life of a sandbox's first process. It returns only when the
// sandbox cannot be set up.
func Init(logger *slog.Logger) error {
	content, err := io.ReadAll(os.NewFile(specDescriptor, "spec"))
	if err != nil {
		return fmt.Errorf("read the sandbox: %w", err)
	}
	var spec Spec
	if err := json.Unmarshal(content, &spec); err != nil {
		return fmt.Errorf("the starter of this sandbox gave up before it was on record: %w", err)
	}
	report := os.NewFile(reportDescriptor, "report")
	runner, err := setUp(spec, logger)
	if err != nil {
		_, _ = fmt.Fprintln(report, err)
		return err
	}
	if _, err := fmt.Fprintln(report, ready); err != nil {
		return fmt.Errorf("report to the starter: %w", err)
	}
	if err := report.Close(); err != nil {
		return fmt.Errorf("report to the starter: %w", err)
	}
	runner.run()
	return nil
}

func setUp(spec Spec, logger *slog.Logger) (*runner, error) {
	r := &runner{logger: logger, running: map[int]*service{}, startable: make(chan *service)}
	// Logs lie outside, so they are opened while outside can be seen.
	for _, s := range spec.Services {
		file, err := os.OpenFile(s.Log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
		if err != nil {
			return nil, fmt.Errorf("open the log of %s: %w", s.Args[0], err)
		}
		r.services = append(r.services, &service{Service: s, log: file})
	}
	if err := mountAll(spec); err != nil {
		return nil, err
	}
	if spec.Root != "" {
		if err := unix.Sethostname([]byte(spec.Name)); err != nil {
			return nil, fmt.Errorf("set the host name: %w", err)
		}
	}
	var err error
	if r.nothing, err = os.Open(os.DevNull); err != nil {
		return nil, err
	}
	return r, nil
}

type service struct {
	Service
	log *os.File
}

// runner keeps services running. All but waiting happens in run's goroutine.
type runner struct {
	logger    *slog.Logger
	services  []*service
	nothing   *os.File
	running   map[int]*service
	startable chan *service
}

func (r *runner) run() {
	ended := make(chan os.Signal, 1)
	signal.Notify(ended, unix.SIGCHLD)
	for _, s := range r.services {
		go r.startLater(s, 0)
	}
	for {
		select {
		case s := <-r.startable:
			r.start(s)
		case <-ended:
			r.collect()
		}
	}
}

// startLater hands s to run when its time has come.
func (r *runner) startLater(s *service, delay time.Duration) {
	time.Sleep(delay)
	for _, condition := range s.After {
		// Never ends early: a machine, too, waits for its network for ever.
		_ = proc.Poll(context.Background(), 20*time.Millisecond, func() bool { return met(condition) })
	}
	r.startable <- s
}

// met reports whether a condition, as in Service.After, is met.
func met(condition string) bool {
	kind, what, _ := strings.Cut(condition, ":")
	if kind == "file" {
		_, err := os.Stat(what)
		return err == nil
	}
	connection, err := net.Dial(kind, what)
	return err == nil && connection.Close() == nil
}

func (r *runner) start(s *service) {
	process, err := os.StartProcess(s.Args[0], s.Args, &os.ProcAttr{
		Dir:   "/",
		Env:   s.Env,
		Files: []*os.File{r.nothing, s.log, s.log},
		Sys:   &syscall.SysProcAttr{Setsid: true},
	})
	if err != nil {
		r.logger.Error("Could not start service", "program", s.Args[0], "err", err)
		go r.startLater(s, restartDelay)
		return
	}
	r.logger.Info("Started service", "program", s.Args[0], "pid", process.Pid)
	if err := setWeight(process.Pid, s.Nice); err != nil {
		r.logger.Error("Could not give the service its weight", "program", s.Args[0], "nice", s.Nice, "err", err)
	}
	r.running[process.Pid] = s
	// collect waits for all children alike, services and orphans.
	if err := process.Release(); err != nil {
		r.logger.Error("Could not release service", "program", s.Args[0], "err", err)
	}
}

// setWeight gives a process, which leads a session, its weight against others. Where the kernel
// groups processes by session (sched(7), autogroup), the weight of the group is what counts.
func setWeight(pid, nice int) error {
	if nice == 0 {
		return nil
	}
	if err := unix.Setpriority(unix.PRIO_PROCESS, pid, nice); err != nil {
		return fmt.Errorf("set the priority of process %d: %w", pid, err)
	}
	err := os.WriteFile(fmt.Sprintf("/proc/%d/autogroup", pid), []byte(strconv.Itoa(nice)), 0)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("set the weight of the session of process %d: %w", pid, err)
	}
	return nil
}

// collect takes in every child that ended: services, which are started again,
// and orphans, which the kernel gives to the first process of a PID namespace.
func (r *runner) collect() {
	for {
		var status unix.WaitStatus
		pid, err := unix.Wait4(-1, &status, unix.WNOHANG, nil)
		if err != nil || pid <= 0 {
			return
		}
		s, known := r.running[pid]
		if !known {
			continue
		}
		delete(r.running, pid)
		r.logger.Info("Service ended, starting it again", "program", s.Args[0], "pid", pid,
			"exitCode", status.ExitStatus(), "signal", status.Signal())
		go r.startLater(s, restartDelay)
	}
}
