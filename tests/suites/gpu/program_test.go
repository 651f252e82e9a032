// SPDX-License-Identifier: Apache-2.0

//go:build gpu

package gpu

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"syscall"
	"testing"
	"time"

	oci "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// programLimit is how long a CUDA program may take, with the start of its
// GPU's MPS server. A client that has to wait for others hangs.
const programLimit = time.Minute

// program is a CUDA program that runs in a container's stead (testdata/cudaprobe.c).
type program struct {
	t        *testing.T
	cmd      *exec.Cmd
	input    io.Writer
	output   *bufio.Scanner
	messages *bytes.Buffer
}

// startProgram starts the command with these mounts, which nobody else sees, as
// the user with that uid. It returns when the program has a context on the GPU.
func startProgram(t *testing.T, mounts []oci.Mount, uid uint32, env []string, path string, args ...string) *program {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), programLimit)
	t.Cleanup(cancel)
	cmd := exec.CommandContext(ctx, path, args...)
	cmd.Env, cmd.Dir = env, "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}
	p := &program{t: t, cmd: cmd, messages: &bytes.Buffer{}}
	cmd.Stderr = p.messages
	input, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	output, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	p.input, p.output = input, bufio.NewScanner(output)
	if err := withMounts(mounts, cmd.Start); err != nil {
		t.Fatalf("start %v: %v", cmd.Args, err)
	}
	if line := p.line(); line != "ready" {
		t.Fatalf("%v said %q before it was ready", cmd.Args, line)
	}
	return p
}

// goOn lets the program do what it is for.
func (p *program) goOn() {
	p.t.Helper()
	if _, err := io.WriteString(p.input, "\n"); err != nil {
		p.t.Fatalf("%v: %v", p.cmd.Args, err)
	}
}

// answer waits for what the program says in the end.
func (p *program) answer() string {
	p.t.Helper()
	line := p.line()
	if err := p.cmd.Wait(); err != nil {
		p.t.Fatalf("%v: %v: %s", p.cmd.Args, err, p.messages)
	}
	return line
}

func (p *program) line() string {
	p.t.Helper()
	if !p.output.Scan() {
		p.t.Fatalf("%v said nothing: %v: %s", p.cmd.Args, p.cmd.Wait(), p.messages)
	}
	return p.output.Text()
}

// withMounts calls start on a thread that sees the mounts, and so does the
// process that start starts. Directories to mount at are made, and stay, as on a
// node.
func withMounts(mounts []oci.Mount, start func() error) error {
	started := make(chan error, 1)
	go func() {
		// Never unlocked: the thread ends with the goroutine, and its mounts
		// with the process.
		runtime.LockOSThread()
		started <- mountThenStart(mounts, start)
	}()
	return <-started
}

func mountThenStart(mounts []oci.Mount, start func() error) error {
	if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
		return fmt.Errorf("make a mount namespace: %w", err)
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("keep mounts from the host: %w", err)
	}
	for _, m := range mounts {
		if err := os.MkdirAll(m.Destination, 0o755); err != nil {
			return err
		}
		if err := unix.Mount(m.Source, m.Destination, "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
			return fmt.Errorf("mount %s at %s: %w", m.Source, m.Destination, err)
		}
		if err := unix.Mount("", m.Destination, "", unix.MS_BIND|unix.MS_REMOUNT|flags(m.Options), ""); err != nil {
			return fmt.Errorf("mount %s at %s with the options %v: %w", m.Source, m.Destination, m.Options, err)
		}
	}
	return start()
}

// flags are the mount options that keep a container from something.
func flags(options []string) (flags uintptr) {
	for _, option := range options {
		flags |= map[string]uintptr{"ro": unix.MS_RDONLY, "nosuid": unix.MS_NOSUID, "nodev": unix.MS_NODEV,
			"noexec": unix.MS_NOEXEC}[option]
	}
	return flags
}
