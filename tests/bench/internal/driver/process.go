// SPDX-License-Identifier: Apache-2.0

// Package driver runs a DRA driver as a process of its own, without a kubelet:
// the benchmark asks in the kubelet's place.
package driver

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

// Driver is a program that can be started, any number of times, on the same
// directory.
type Driver struct {
	// Name is the DRA driver's name.
	Name    string
	Program string
	// Args are arguments besides those that name the directories.
	Args []string
	// Flags are those that name the directories; of this repository's drivers if empty.
	Flags Flags
	// Dir holds all that the driver writes, its log and its sockets. A socket's
	// path must stay below 108 bytes.
	Dir string
}

// Flags are the names of a driver's flags for the kubelet's directories and that of CDI.
type Flags struct{ Plugins, Registrar, CDI string }

// Process is a running driver.
type Process struct {
	driver  Driver
	cmd     *exec.Cmd
	started time.Time
	// exited is closed when the process is gone.
	exited chan struct{}
}

// Start starts the driver. It is killed if the benchmark dies.
func (d Driver) Start() (*Process, error) {
	for _, dir := range []string{d.plugins(), d.registry(), d.cdi()} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return nil, fmt.Errorf("start driver %s: %w", d.Name, err)
		}
	}
	log, err := os.OpenFile(d.Log(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, fmt.Errorf("start driver %s: %w", d.Name, err)
	}
	defer log.Close()
	flags := d.Flags
	if flags == (Flags{}) {
		flags = Flags{Plugins: "--plugins-dir", Registrar: "--registrar-dir", CDI: "--cdi-dir"}
	}
	args := append([]string{flags.Plugins, d.plugins(), flags.Registrar, d.registry(), flags.CDI, d.cdi()}, d.Args...)
	p := &Process{driver: d, cmd: exec.Command(d.Program, args...), exited: make(chan struct{})}
	p.cmd.Stdout, p.cmd.Stderr = log, log
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	p.started = time.Now()
	if err := p.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start driver %s: %w", d.Name, err)
	}
	go func() {
		_ = p.cmd.Wait()
		close(p.exited)
	}()
	return p, nil
}

// Log is the file with all that the driver's processes printed.
func (d Driver) Log() string { return filepath.Join(d.Dir, "log") }

func (d Driver) plugins() string  { return filepath.Join(d.Dir, "plugins") }
func (d Driver) registry() string { return filepath.Join(d.Dir, "registry") }
func (d Driver) cdi() string      { return filepath.Join(d.Dir, "cdi") }
func (d Driver) socket() string   { return filepath.Join(d.plugins(), d.Name, "dra.sock") }

// Started is the moment before the process was started.
func (p *Process) Started() time.Time { return p.started }

// PID is the process' number.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Exited is closed once the process is gone.
func (p *Process) Exited() <-chan struct{} { return p.exited }

// Kill ends the process by SIGKILL and waits until it is gone.
func (p *Process) Kill() { p.signal(syscall.SIGKILL) }

// Stop ends the process by SIGTERM and waits until it is gone.
func (p *Process) Stop(ctx context.Context) error {
	p.signalOnly(syscall.SIGTERM)
	select {
	case <-p.exited:
		return nil
	case <-ctx.Done():
		p.Kill()
		return fmt.Errorf("stop driver %s: %w", p.driver.Name, context.Cause(ctx))
	}
}

func (p *Process) signal(s syscall.Signal) {
	p.signalOnly(s)
	<-p.exited
}

func (p *Process) signalOnly(s syscall.Signal) {
	// The only error is that the process is gone already.
	_ = p.cmd.Process.Signal(s)
}

// gone is the error of a process that ended by itself.
func (p *Process) gone() error {
	return fmt.Errorf("driver %s ended: %s: see %s", p.driver.Name, p.cmd.ProcessState, p.driver.Log())
}

// CPU is the processor time that a process has used so far, in all its
// threads, to the nanosecond: /proc has it only in hundredths of a second.
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

// RSS is a process's resident memory in bytes.
func RSS(pid int) (int64, error) {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, fmt.Errorf("read the memory of process %d: %w", pid, err)
	}
	for line := range bytes.Lines(status) {
		fields := bytes.Fields(line)
		if len(fields) == 3 && string(fields[0]) == "VmRSS:" {
			kib, err := strconv.ParseInt(string(fields[1]), 10, 64)
			return kib << 10, err
		}
	}
	return 0, fmt.Errorf("read the memory of process %d: no VmRSS in its status", pid)
}

// Running lists the processes, of this machine and of its containers, that were started as program.
func Running(program string) ([]int, error) {
	files, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		return nil, err
	}
	var pids []int
	for _, file := range files {
		// Processes come and go.
		cmdline, err := os.ReadFile(file)
		if err != nil || !bytes.HasPrefix(cmdline, []byte(program+"\x00")) {
			continue
		}
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(file)))
		if err != nil {
			return nil, err
		}
		pids = append(pids, pid)
	}
	if len(pids) == 0 {
		return nil, fmt.Errorf("there is no process of %s", program)
	}
	return pids, nil
}
