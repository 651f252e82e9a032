// SPDX-License-Identifier: Apache-2.0

package control

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/mps"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/mps/supervisor"
)

const testGPU = "GPU-1"

// program is a control program that is this script.
func program(t *testing.T, script string) *Program {
	t.Helper()
	path := filepath.Join(t.TempDir(), "nvidia-cuda-mps-control")
	expect.NoError(t, os.WriteFile(path, []byte("#!/bin/sh\n"+script), 0o755))
	p := &Program{Root: "/", Path: path, LibraryPaths: []string{"/opt/a", "/opt/b"}, Dir: mps.Dir(t.TempDir())}
	expect.NoError(t, os.MkdirAll(p.Dir.DaemonDir(testGPU), 0o755))
	return p
}

// read waits for a file of the pipe directory to have a line.
func read(t *testing.T, p *Program, name string) string {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		content, err := os.ReadFile(filepath.Join(p.Dir.DaemonDir(testGPU), name))
		if err == nil && strings.HasSuffix(string(content), "\n") {
			return strings.TrimSpace(string(content))
		}
	}
	t.Fatalf("no %s", name)
	return ""
}

func TestHowTheDaemonIsStarted(t *testing.T) {
	p := program(t, `cd "$CUDA_MPS_PIPE_DIRECTORY"
{ echo "$@"; env | grep -e CUDA -e LD_ -e PATH= | sort; } >seen
echo bad luck >&2
exit 3
`)
	d, err := p.Start(testGPU)
	expect.NoError(t, err)
	<-d.Done()
	want := strings.Join([]string{
		"-f --multiuser-server",
		"CUDA_MPS_LOG_DIRECTORY=" + p.Dir.LogDir(testGPU),
		"CUDA_MPS_PIPE_DIRECTORY=" + p.Dir.DaemonDir(testGPU),
		"CUDA_VISIBLE_DEVICES=" + testGPU,
		"LD_LIBRARY_PATH=/opt/a:/opt/b",
		"PATH=" + filepath.Dir(p.Path) + ":/usr/sbin:/usr/bin:/sbin:/bin",
	}, "\n")
	expect.Equal(t, want, read(t, p, "seen"), "what the program saw")
	expect.Error(t, d.Err(), "exit status 3", `"bad luck"`, p.Dir.LogDir(testGPU))
}

// ended reports whether a process has ended, collected or not.
func ended(pid int) bool {
	stat, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	return err != nil || strings.Contains(string(stat), ") Z ")
}

func TestServerEndsWithDaemon(t *testing.T) {
	for name, end := range map[string]func(t *testing.T, pid int, kill func() error){
		"it is killed by somebody": func(t *testing.T, pid int, _ func() error) {
			expect.NoError(t, unix.Kill(pid, unix.SIGKILL))
		},
		"it is killed by us": func(t *testing.T, _ int, kill func() error) {
			expect.NoError(t, kill())
		},
	} {
		t.Run(name, func(t *testing.T) {
			p := program(t, `sleep 1000 & echo $! >"$CUDA_MPS_PIPE_DIRECTORY/server"; wait`)
			d, err := p.Start(testGPU)
			expect.NoError(t, err)
			t.Cleanup(func() { _ = d.Kill() })
			server, err := strconv.Atoi(read(t, p, "server"))
			expect.NoError(t, err)
			end(t, d.PID(), d.Kill)
			<-d.Done()
			for deadline := time.Now().Add(10 * time.Second); !ended(server); time.Sleep(time.Millisecond) {
				if time.Now().After(deadline) {
					t.Fatal("the server outlives the daemon")
				}
			}
			expect.NoErrorf(t, d.Kill(), "killing what has ended")
		})
	}
}

func TestAsk(t *testing.T) {
	p := program(t, `read command; echo "$CUDA_MPS_PIPE_DIRECTORY answers $command"`)
	answer, err := p.Ask(t.Context(), testGPU, "get_server_list")
	if want := p.Dir.DaemonDir(testGPU) + " answers get_server_list"; err != nil || answer != want {
		t.Errorf("answer %q, want %q (%v)", answer, want, err)
	}

	p = program(t, `echo Cannot find MPS control daemon process; exit 1`)
	_, err = p.Ask(t.Context(), testGPU, "get_server_list")
	expect.Error(t, err, "Cannot find")

	p.Path += "-gone"
	_, err = p.Ask(t.Context(), testGPU, "get_server_list")
	expect.ErrorIs(t, err, supervisor.ErrNotAsked) // else it blames the daemon

	p = program(t, `exec sleep 1000`)
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	if _, err := p.Ask(ctx, testGPU, "quit"); !errors.Is(err, context.DeadlineExceeded) ||
		errors.Is(err, supervisor.ErrNotAsked) {
		t.Errorf("error %v, want the deadline's", err)
	}
}

func TestTailKeepsTheEnd(t *testing.T) {
	var output tail
	for i := range 10000 {
		_, err := fmt.Fprintln(&output, "line", i)
		expect.NoError(t, err)
	}
	if len(output.String()) > tailBytes {
		t.Errorf("%d bytes are kept", len(output.String()))
	}
	expect.Says(t, output.said(), `"line 9999"`)
}

// The server is the daemon's child, not ours.
func TestWatch(t *testing.T) {
	cmd := exec.CommandContext(t.Context(), "sh", "-c", "sleep 60 & echo $!; wait")
	output, err := cmd.StdoutPipe()
	expect.NoError(t, err)
	expect.NoError(t, cmd.Start())
	var pid int
	_, err = fmt.Fscan(output, &pid)
	expect.NoError(t, err)
	p := &Program{}
	ended, forget, err := p.Watch(pid)
	expect.NoError(t, err)
	select {
	case <-ended:
		t.Error("it is taken for ended")
	default:
	}
	expect.NoError(t, unix.Kill(pid, unix.SIGKILL))
	<-ended
	forget()
	forget()
	expect.NoError(t, cmd.Wait())
	if _, _, err := p.Watch(pid); err == nil {
		t.Error("a process is watched that is gone")
	}
}

// Who keeps others from the GPU has to do so before its server goes.
func TestServersOutliveTheirDaemonUntilTheyAreKilled(t *testing.T) {
	p := program(t, `sleep 60 & echo $! >"$CUDA_MPS_PIPE_DIRECTORY/server"; exit 1`)
	d, err := p.Start(testGPU)
	expect.NoError(t, err)
	<-d.Gone()
	server, err := strconv.Atoi(read(t, p, "server"))
	expect.NoError(t, err)
	ended, forget, err := p.Watch(server)
	expect.NoErrorf(t, err, "the server has gone with its daemon")
	defer forget()
	expect.NoError(t, d.Kill())
	<-d.Done()
	<-ended
}

// A program that the kernel holds is waited for as long as one that was killed may take.
func TestProgramThatDoesNotEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		begin := time.Now()
		if ended, err := await(ctx, make(chan error)); ended || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("it ended: %t, %v", ended, err)
		}
		if took := time.Since(begin); took > 5*time.Second {
			t.Errorf("it was waited for for %s", took)
		}
		answered := make(chan error, 1)
		answered <- errors.New("killed")
		if ended, err := await(ctx, answered); !ended || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("one that was killed: %t, %v", ended, err)
		}
	})
}

// The first thread's mounts are what others take for the process's, and it does
// not end with a goroutine.
func TestNotOnTheFirstThread(t *testing.T) {
	const calls = 500
	threads := make(chan int, calls)
	for range calls {
		onThread(func() { threads <- unix.Gettid() })
	}
	for range calls {
		if <-threads == unix.Getpid() {
			t.Fatal("something has run on the process's first thread")
		}
	}
}
