// SPDX-License-Identifier: Apache-2.0

// Package sandbox runs a group of services as one machine-like unit: in a PID
// and mount namespace of its own, with a first process that starts them again
// when they end. Killing that first process ends all of them, and everything
// they started, at once, and drops every mount they made.
//
// It is for Linux and needs root.
package sandbox

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"

	"github.com/gpushare/dra-driver-gpushare/tests/cluster/internal/proc"
)

// InitArgument is the first argument of this program where it is to be the
// first process of a sandbox: main has to call Init then and nothing else.
const InitArgument = "sandbox-init"

// Spec says what a sandbox is.
type Spec struct {
	// Name tells sandboxes apart in the machine's list of processes.
	Name string `json:"name"`
	// Root is the directory that becomes the root of the file system; empty
	// keeps the one of the caller. A sandbox with a root of its own also has
	// its own host name, which is Name, System V objects and /dev/shm.
	Root string `json:"root,omitempty"`
	// Binds are directories from outside, for a sandbox with a root.
	Binds []Bind `json:"binds,omitempty"`
	// Shadows are files of /proc/sys that the sandbox may write without any
	// effect on the machine: it sees a private copy.
	Shadows []string `json:"shadows,omitempty"`
	// Services are started in order.
	Services []Service `json:"services"`
}

// Bind makes a directory and all that is mounted below it appear at Target, an
// existing directory in the root. What is mounted later on either side stays there.
type Bind struct {
	Source   string `json:"source"`
	Target   string `json:"target"`
	ReadOnly bool   `json:"readOnly,omitempty"`
	// Instead takes off first what an earlier bind has mounted at Target, so that the list of
	// mounts has one there, which some programs rely on.
	Instead bool `json:"instead,omitempty"`
}

// Service is a program that is started again whenever it ends.
type Service struct {
	// Args is the program's path inside the sandbox and its arguments.
	Args []string `json:"args"`
	// Env is its whole environment.
	Env []string `json:"env,omitempty"`
	// Log is the path, outside of the sandbox, of the file its output is
	// appended to.
	Log string `json:"log"`
	// After is what the service waits for before each start. "tcp:ADDRESS" and
	// "unix:PATH" have to accept a connection, "file:PATH" has to be there;
	// paths are those in the sandbox.
	After []string `json:"after,omitempty"`
	// Nice is its weight against other processes of the machine, as of setpriority(2): 0 is that
	// of everybody, less is more.
	Nice int `json:"nice,omitempty"`
}

const (
	specDescriptor   = 3
	reportDescriptor = 4
)

// Start starts a sandbox that outlives the caller. It calls record with the
// first process before anything runs in it, and when record fails or the caller
// dies first, nothing ever does: there is no moment in which the sandbox runs
// and is not on record. The services may not be up yet when Start returns, but
// the sandbox's file system is.
func Start(ctx context.Context, spec Spec, log string, record func(proc.Process) error) (err error) {
	content, err := json.Marshal(spec)
	if err != nil {
		return fmt.Errorf("encode the sandbox: %w", err)
	}
	output, err := os.OpenFile(log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return fmt.Errorf("open the sandbox's log: %w", err)
	}
	defer output.Close()
	specReader, specWriter, err := os.Pipe()
	if err != nil {
		return fmt.Errorf("make a pipe: %w", err)
	}
	defer specWriter.Close()
	reportReader, reportWriter, err := os.Pipe()
	if err != nil {
		return errors.Join(fmt.Errorf("make a pipe: %w", err), specReader.Close())
	}
	defer reportReader.Close()

	cmd := exec.Command("/proc/self/exe")
	cmd.Args = []string{"gpushare-" + spec.Name, InitArgument}
	cmd.Dir = "/"
	cmd.Env = []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin"}
	cmd.Stdout, cmd.Stderr = output, output
	cmd.ExtraFiles = []*os.File{specReader, reportWriter}
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: syscall.CLONE_NEWPID | syscall.CLONE_NEWNS,
		Setsid:     true,
	}
	if spec.Root != "" {
		cmd.SysProcAttr.Cloneflags |= syscall.CLONE_NEWUTS | syscall.CLONE_NEWIPC
	}
	err = cmd.Start()
	err = errors.Join(err, specReader.Close(), reportWriter.Close())
	if err != nil {
		return fmt.Errorf("start the sandbox's first process: %w", err)
	}
	// Collects it should it end while the caller still runs.
	go func() { _ = cmd.Wait() }()

	first, err := proc.Identify(cmd.Process.Pid)
	if err != nil {
		return err
	}
	if err := record(first); err != nil {
		return fmt.Errorf("record the sandbox's first process: %w", err)
	}
	if _, err := specWriter.Write(content); err != nil {
		return fmt.Errorf("hand the sandbox to its first process: %w", err)
	}
	if err := specWriter.Close(); err != nil {
		return fmt.Errorf("hand the sandbox to its first process: %w", err)
	}
	report, err := io.ReadAll(reportReader)
	if err != nil {
		return fmt.Errorf("hear from the sandbox's first process: %w", err)
	}
	if verdict := strings.TrimSpace(string(report)); verdict != ready {
		return errors.Join(fmt.Errorf("set the sandbox up: %s", verdict), first.Kill(ctx))
	}
	return nil
}

// ready is what the first process reports when the file system is set up.
const ready = "ready"
