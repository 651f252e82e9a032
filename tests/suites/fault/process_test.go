// SPDX-License-Identifier: Apache-2.0

package fault

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
)

// process is a running worker.
type process struct {
	cmd   *exec.Cmd
	input io.WriteCloser
	lines chan string
	heard []string
}

// start starts a worker, which is killed at the latest when the test ends.
func start(t *testing.T, dir nodeDir, name string, seed uint64) *process {
	t.Helper()
	executable, err := os.Executable()
	expect.NoError(t, err)
	p := &process{cmd: exec.CommandContext(t.Context(), executable), lines: make(chan string, 1<<16)}
	p.cmd.Env = append(os.Environ(), fmt.Sprintf("%s=%s %d %q", workerEnv, name, seed, dir))
	p.cmd.Stderr = os.Stderr
	if p.input, err = p.cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	output, err := p.cmd.StdoutPipe()
	expect.NoError(t, err)
	expect.NoError(t, p.cmd.Start())
	go func() {
		defer close(p.lines)
		for scanner := bufio.NewScanner(output); scanner.Scan(); {
			p.lines <- strings.TrimSpace(scanner.Text())
		}
	}()
	return p
}

// await reads until the worker says something, and fails the test where it ends
// or fails first.
func (p *process) await(t *testing.T, what string) {
	t.Helper()
	for line := range p.lines {
		p.heard = append(p.heard, line)
		if says(what)(line) {
			return
		}
		if strings.HasPrefix(line, sayFailed) {
			t.Fatal(line)
		}
	}
	t.Fatalf("the worker ended before it said %q: %q", what, p.heard)
}

// says is whether a line says something, about a claim or not.
func says(what string) func(line string) bool {
	return func(line string) bool { return line == what || strings.HasPrefix(line, what+" ") }
}

func (p *process) goOn(t *testing.T) {
	t.Helper()
	if _, err := io.WriteString(p.input, "\n"); err != nil {
		t.Fatal(err)
	}
}

// killAfter kills the worker in the middle of what it does, and reads what it
// still said.
func (p *process) killAfter(t *testing.T, delay time.Duration) {
	t.Helper()
	time.Sleep(delay)
	if err := p.cmd.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		t.Fatal(err)
	}
	for line := range p.lines {
		p.heard = append(p.heard, line)
		if strings.HasPrefix(line, sayFailed) {
			t.Error(line)
		}
	}
	// It ends by the signal; anything else it has said.
	_ = p.cmd.Wait()
}
