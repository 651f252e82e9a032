// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"

	"github.com/gpushare/dra-driver-gpushare/tests/standins/sim/contexts"
)

// server is the daemon's server, a process of its own as NVIDIA's.
type server struct {
	cmd    *exec.Cmd
	active atomic.Bool
	ended  chan struct{}
}

// startServer starts a server, if there is none. A server that may make no context on the
// GPU ends.
func (d *daemon) startServer() string {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.server != nil {
		return "A server runs already\n"
	}
	// The program may be in a driver root without /proc and /dev/null.
	cmd := exec.Command(os.Args[0])
	cmd.Args = []string{filepath.Join(filepath.Dir(os.Args[0]), "nvidia-cuda-mps-server"), "-server"}
	cmd.Stderr = os.Stderr
	input, err := cmd.StdinPipe()
	if err != nil {
		return err.Error() + "\n"
	}
	output, err := cmd.StdoutPipe()
	if err != nil {
		return err.Error() + "\n"
	}
	if err := cmd.Start(); err != nil {
		return err.Error() + "\n"
	}
	s := &server{cmd: cmd, ended: make(chan struct{})}
	d.server = s
	go func() {
		s.active.Store(bufio.NewScanner(output).Scan())
		err := cmd.Wait()
		d.mu.Lock()
		if d.server == s {
			d.server = nil
		}
		d.mu.Unlock()
		d.logger.Info("The server has ended", "pid", cmd.Process.Pid, "how", err)
		// Open until now, for the server ends with it.
		_ = input.Close()
		close(s.ended)
	}()
	return ""
}

func (d *daemon) serverList() string {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.server == nil {
		return ""
	}
	return fmt.Sprintln(d.server.cmd.Process.Pid)
}

func (d *daemon) serverStatus(pid string) string {
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case d.server == nil || strconv.Itoa(d.server.cmd.Process.Pid) != pid:
		return "Server not found\n"
	case d.users.faulty():
		return "FAULT\n"
	case d.server.active.Load():
		return "ACTIVE\n"
	}
	return "INITIALIZING\n"
}

// endServer ends the server, if there is one.
func (d *daemon) endServer() {
	d.mu.Lock()
	s := d.server
	d.mu.Unlock()
	if s == nil {
		return
	}
	// It may have ended by itself.
	_ = s.cmd.Process.Kill()
	<-s.ended
}

// beServer has a context on each of the GPUs until its input ends, which it does with the
// daemon. Outside of a simulated driver root there is no GPU to have one on.
func beServer(uuids string, input io.Reader, output io.Writer) error {
	if root := contexts.RootOf(os.Args[0]); root != "" {
		for uuid := range strings.SplitSeq(uuids, ",") {
			closeContext, err := contexts.Open(root, uuid)
			if err != nil {
				return err
			}
			defer closeContext() //nolint:errcheck // It ends with the process.
		}
	}
	if _, err := fmt.Fprintln(output, "ready"); err != nil {
		return err
	}
	_, err := io.Copy(io.Discard, input)
	return err
}
