// SPDX-License-Identifier: Apache-2.0

// Package process runs programs as processes of this machine, and reads what processes use of it.
package process

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// patience is how long a process may take to end.
const patience = 10 * time.Second

// Process is a program that was started.
type Process struct {
	// Started is the moment before it was started.
	Started time.Time
	PID     int
	// Exited is closed once the process is gone.
	Exited <-chan struct{}

	log string
	cmd *exec.Cmd
}

// Start starts a program, which is killed if the benchmark dies. What it prints is added to the file log.
func Start(log, program string, args ...string) (*Process, error) {
	out, err := os.OpenFile(log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", program, err)
	}
	defer out.Close()
	exited := make(chan struct{})
	p := &Process{Exited: exited, log: log, cmd: exec.Command(program, args...)}
	p.cmd.Stdout, p.cmd.Stderr = out, out
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	p.Started = time.Now()
	if err := p.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", program, err)
	}
	p.PID = p.cmd.Process.Pid
	go func() {
		_ = p.cmd.Wait() // Gone tells how it ended
		close(exited)
	}()
	return p, nil
}

// Gone returns an error for a process that has exited by itself.
func (p *Process) Gone() error {
	return fmt.Errorf("%s ended: %s: see %s", p.cmd.Path, p.cmd.ProcessState, p.log)
}

// Stop ends the process by SIGTERM, or by SIGKILL if it takes too long, and returns when it is gone.
func (p *Process) Stop() {
	_ = p.cmd.Process.Signal(syscall.SIGTERM) // fails if it is gone already
	select {
	case <-p.Exited:
	case <-time.After(patience):
		_ = p.cmd.Process.Kill()
		<-p.Exited
	}
}

// CPU returns the processor time that all threads of a process have used so far, in nanoseconds: /proc has it only in
// hundredths of a second.
func CPU(pid int) (time.Duration, error) {
	// The clock of another process, as clock_getcpuclockid(3) computes it: the
	// complement of the process ID, and 2 for "scheduled time, all threads".
	const scheduled = 2
	clock := int32(^uint32(pid)<<3 | scheduled)
	var used unix.Timespec
	if err := unix.ClockGettime(clock, &used); err != nil {
		return 0, fmt.Errorf("read the processor time of process %d: %w", pid, err)
	}
	return time.Duration(used.Nano()), nil
}

// Resident returns a process' resident memory in MiB.
func Resident(pid int) (float64, error) {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, fmt.Errorf("read the memory of process %d: %w", pid, err)
	}
	for line := range bytes.Lines(status) {
		fields := bytes.Fields(line)
		if len(fields) == 3 && string(fields[0]) == "VmRSS:" {
			kib, err := strconv.ParseInt(string(fields[1]), 10, 64)
			return float64(kib) / 1024, err
		}
	}
	return 0, fmt.Errorf("read the memory of process %d: no VmRSS in its status", pid)
}

// Look is what a process had used at some time.
type Look struct {
	pid  int
	when time.Time
	cpu  time.Duration
}

// LookAt returns what a process has used so far.
func LookAt(pid int) (Look, error) {
	cpu, err := CPU(pid)
	return Look{pid, time.Now(), cpu}, err
}

// Since returns the processor time that the process has used a minute since the Look, and the memory that is resident
// now.
func (l Look) Since() (string, error) {
	now, err := LookAt(l.pid)
	if err != nil {
		return "", err
	}
	resident, err := Resident(l.pid)
	perMinute := (now.cpu - l.cpu).Seconds() / now.when.Sub(l.when).Minutes()
	return fmt.Sprintf("%.3f s a minute, %.1f MiB", perMinute, resident), err
}

// With lists the processes, of this machine and of its containers, that have the argument: a program's path is the
// first argument of its processes.
func With(argument string) ([]int, error) {
	files, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		return nil, err
	}
	var pids []int
	for _, file := range files {
		cmdline, err := os.ReadFile(file)
		if err != nil || !bytes.Contains(append([]byte{0}, cmdline...), []byte("\x00"+argument+"\x00")) {
			continue // processes come and go
		}
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(file)))
		if err != nil {
			return nil, err
		}
		pids = append(pids, pid)
	}
	if len(pids) == 0 {
		return nil, fmt.Errorf("no process has the argument %s", argument)
	}
	return pids, nil
}

// LeaveAlone lets time pass.
func LeaveAlone(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
