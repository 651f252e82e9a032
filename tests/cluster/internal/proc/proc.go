// SPDX-License-Identifier: Apache-2.0

// Package proc names processes so that one which was started earlier is never
// mistaken for another that got its number since.
package proc

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Process is one run of one program. The zero value is no process.
type Process struct {
	PID int `json:"pid"`
	// Start is when the process started, in clock ticks since Boot.
	Start uint64 `json:"start"`
	// Boot is the kernel's id of the boot it started in.
	Boot string `json:"boot"`
}

// Identify gives the identity of a running process by its number.
func Identify(pid int) (Process, error) {
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return Process{}, fmt.Errorf("identify process %d: %w", pid, err)
	}
	stat, err := readStat(pid)
	if err != nil {
		return Process{}, fmt.Errorf("identify process %d: %w", pid, err)
	}
	return Process{PID: pid, Start: stat.start, Boot: strings.TrimSpace(string(boot))}, nil
}

// Alive reports whether this very process still runs. A process that ended and
// was not yet collected by its parent does not.
func (p Process) Alive() bool {
	if p.PID == 0 {
		return false
	}
	now, err := Identify(p.PID)
	if err != nil || now != p {
		return false
	}
	stat, err := readStat(p.PID)
	if err != nil || stat.state == 'X' {
		return false
	}
	// The first thread's end does not end the others; the last one of a PID
	// namespace's first process still has to end all that is in it.
	return stat.state != 'Z' || stat.threads > 1
}

// Kill ends this very process with SIGKILL and waits until it is gone. It is
// no error where it is gone already.
func (p Process) Kill(ctx context.Context) error {
	if !p.Alive() {
		return nil
	}
	// A descriptor keeps the number from being used again between the check
	// and the signal.
	fd, err := unix.PidfdOpen(p.PID, 0)
	if errors.Is(err, unix.ESRCH) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("open process %d: %w", p.PID, err)
	}
	defer unix.Close(fd)
	if !p.Alive() {
		return nil
	}
	if err := unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("kill process %d: %w", p.PID, err)
	}
	for p.Alive() {
		// The descriptor becomes readable when the process ends.
		_, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 100)
		if err != nil && !errors.Is(err, unix.EINTR) {
			return fmt.Errorf("wait for the end of process %d: %w", p.PID, err)
		}
		if ctx.Err() != nil {
			return fmt.Errorf("wait for the end of process %d: %w", p.PID, context.Cause(ctx))
		}
	}
	return nil
}

// Child finds the running child of p whose program has the given name, as in
// the last element of its first argument.
func (p Process) Child(name string) (Process, bool) {
	entries, err := filepath.Glob("/proc/[0-9]*")
	if err != nil || !p.Alive() {
		return Process{}, false
	}
	for _, entry := range entries {
		pid, err := strconv.Atoi(filepath.Base(entry))
		if err != nil {
			continue
		}
		stat, err := readStat(pid)
		if err != nil || stat.parent != p.PID || stat.state == 'Z' {
			continue
		}
		cmdline, err := os.ReadFile(filepath.Join(entry, "cmdline"))
		if err != nil {
			continue
		}
		argv0, _, _ := bytes.Cut(cmdline, []byte{0})
		if filepath.Base(string(argv0)) != name {
			continue
		}
		if child, err := Identify(pid); err == nil {
			return child, true
		}
	}
	return Process{}, false
}

// Poll calls condition until it is true or ctx ends.
func Poll(ctx context.Context, interval time.Duration, condition func() bool) error {
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	for !condition() {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-ticker.C:
		}
	}
	return nil
}

type stat struct {
	state   byte
	parent  int
	threads int
	start   uint64
}

func readStat(pid int) (stat, error) {
	content, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		if errors.Is(err, unix.ESRCH) {
			err = fs.ErrNotExist
		}
		return stat{}, err
	}
	return parseStat(string(content))
}

// parseStat reads the fields of /proc/PID/stat (proc_pid_stat(5)). The second
// is the program's name in parentheses and may itself hold both blanks and
// parentheses, so the rest is counted from the last one.
func parseStat(content string) (stat, error) {
	_, rest, found := cutLast(content, ") ")
	fields := strings.Fields(rest)
	if !found || len(fields) < 20 {
		return stat{}, fmt.Errorf("unexpected form of a process' stat: %q", content)
	}
	parent, err := strconv.Atoi(fields[1])
	if err != nil {
		return stat{}, fmt.Errorf("parent in a process' stat: %w", err)
	}
	threads, err := strconv.Atoi(fields[17])
	if err != nil {
		return stat{}, fmt.Errorf("number of threads in a process' stat: %w", err)
	}
	start, err := strconv.ParseUint(fields[19], 10, 64)
	if err != nil {
		return stat{}, fmt.Errorf("start time in a process' stat: %w", err)
	}
	return stat{state: fields[0][0], parent: parent, threads: threads, start: start}, nil
}

func cutLast(s, sep string) (before, after string, found bool) {
	i := strings.LastIndex(s, sep)
	if i < 0 {
		return s, "", false
	}
	return s[:i], s[i+len(sep):], true
}
