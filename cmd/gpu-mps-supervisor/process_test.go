// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/internal/program"
	"github.com/gpushare/dra-driver-gpushare/internal/testcache"
	"github.com/gpushare/dra-driver-gpushare/internal/testneeds"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/mps"
	"github.com/gpushare/dra-driver-gpushare/tests/standins/nvmllib"
	"github.com/gpushare/dra-driver-gpushare/tests/standins/sim"
)

// supervisorEnv makes this test's program the supervisor.
const supervisorEnv = "GPU_MPS_SUPERVISOR_TEST"

const machineFile = "../../demo/machines/v100x4.yaml"

func TestMain(m *testing.M) {
	if os.Getenv(supervisorEnv) != "" {
		os.Exit(program.Main(command()))
	}
	if what := os.Getenv(pluginEnv); what != "" {
		os.Exit(declare(mps.Declaration(what), mps.Dir(os.Args[1])))
	}
	os.Exit(m.Run())
}

// buildStandIn builds the stand-in for NVIDIA's control program, once for all tests.
var buildStandIn = sync.OnceValues(func() ([]byte, error) {
	const module, source = "../..", "./tests/standins/mps"
	if err := testcache.Builds(context.Background(), module, source); err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "mps-control")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir) //nolint:errcheck // What is left is small.
	path := filepath.Join(dir, "nvidia-cuda-mps-control")
	cmd := exec.Command("go", "build", "-buildvcs=false", "-o", path, source)
	cmd.Dir, cmd.Env = module, append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("build the stand-in: %w: %s", err, out)
	}
	return os.ReadFile(path)
})

// standIn writes the stand-in for NVIDIA's control program into a directory of the test.
func standIn(t *testing.T) string {
	t.Helper()
	content, err := buildStandIn()
	expect.NoError(t, err)
	path := filepath.Join(t.TempDir(), "nvidia-cuda-mps-control")
	expect.NoError(t, os.WriteFile(path, content, 0o700))
	return path
}

// shortDir is a directory whose path leaves room for a socket's: it may have
// 107 bytes.
func shortDir(t *testing.T) mps.Dir {
	t.Helper()
	dir, err := os.MkdirTemp("/tmp", "mps")
	expect.NoError(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return mps.Dir(dir)
}

// process is a running supervisor.
type process struct {
	cmd    *exec.Cmd
	output lockedBuffer
	ended  chan struct{}
}

// lockedBuffer can be read while a process writes.
type lockedBuffer struct {
	mu sync.Mutex
	// Embedded, it would lend its ReadFrom, which does not lock.
	written bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.written.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.written.String()
}

// start starts a supervisor, which is killed at the latest when the test ends.
func start(t *testing.T, args ...string) *process {
	t.Helper()
	executable, err := os.Executable()
	expect.NoError(t, err)
	p := &process{cmd: exec.Command(executable, append([]string{"--node-name=n1"}, args...)...),
		ended: make(chan struct{})}
	p.cmd.Env = []string{supervisorEnv + "=1"}
	p.cmd.Stdout, p.cmd.Stderr = &p.output, &p.output
	expect.NoError(t, p.cmd.Start())
	go func() {
		// How it ended is asked of cmd.ProcessState.
		_ = p.cmd.Wait()
		close(p.ended)
	}()
	t.Cleanup(func() {
		_ = p.cmd.Process.Kill()
		<-p.ended
		if t.Failed() {
			t.Logf("the supervisor said:\n%s", p.output.String())
		}
	})
	return p
}

func (p *process) end(t *testing.T, signal os.Signal) {
	t.Helper()
	expect.NoError(t, p.cmd.Process.Signal(signal))
	<-p.ended
}

// serving starts a supervisor for a directory of its own, and waits until its daemons serve.
func serving(t *testing.T) (mps.Dir, []string) {
	t.Helper()
	dir, uuids := shortDir(t), newGPUs(t)
	start(t, "--mps-dir="+string(dir), "--mps-control="+standIn(t), nvmlFlag(t))
	awaitReady(t, dir, uuids)
	return dir, uuids
}

// eventually polls until the condition holds.
func eventually(t *testing.T, what string, condition func() error) {
	t.Helper()
	deadline := time.Now().Add(20 * time.Second)
	for {
		err := condition()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("it did not come about that %s: %v", what, err)
		}
		time.Sleep(2 * time.Millisecond)
	}
}

// awaitStatus waits until the supervisor says so of the GPU's daemon.
func awaitStatus(t *testing.T, dir mps.Dir, uuid, what string, is func(s mps.Status) bool) {
	t.Helper()
	eventually(t, what, func() error {
		if s, err := dir.Status(uuid); err != nil || !is(s) {
			return fmt.Errorf("status %+v, %w", s, err)
		}
		return nil
	})
}

var buildLibrary = sync.OnceValues(func() ([]byte, error) { return nvmllib.Build(context.Background()) })

func library(t *testing.T) []byte {
	t.Helper()
	content, err := buildLibrary()
	expect.NoError(t, err)
	return content
}

// nvmlFlag is the flag that gives the supervisor the simulated GPUs.
func nvmlFlag(t *testing.T) (flag string) {
	t.Helper()
	spec, err := sim.Load(machineFile)
	expect.NoError(t, err)
	path, err := spec.ForNode("n1").WriteNVML(t.TempDir(), library(t))
	expect.NoError(t, err)
	return "--nvml-library=" + path
}

func newGPUs(t *testing.T) []string {
	t.Helper()
	spec, err := sim.Load(machineFile)
	expect.NoError(t, err)
	var uuids []string
	devices := spec.ForNode("n1").NVML()
	for i := range spec.GPUs {
		device, _ := devices.DeviceGetHandleByIndex(i)
		uuid, _ := device.GetUUID()
		uuids = append(uuids, uuid)
	}
	return uuids
}

func awaitReady(t *testing.T, dir mps.Dir, uuids []string) {
	t.Helper()
	eventually(t, "all daemons are ready", func() error {
		var errs []error
		for _, uuid := range uuids {
			errs = append(errs, dir.Check(uuid))
		}
		return errors.Join(errs...)
	})
}

// daemonPID is the process of the GPU's daemon, as it says itself.
func daemonPID(t *testing.T, dir mps.Dir, uuid string) int {
	t.Helper()
	content, err := os.ReadFile(filepath.Join(dir.DaemonDir(uuid), "nvidia-cuda-mps-control.pid"))
	expect.NoError(t, err)
	pid, err := strconv.Atoi(strings.TrimSpace(string(content)))
	expect.NoError(t, err)
	return pid
}

// client stands in for a CUDA program: its connection lasts as long as the daemon.
func client(t *testing.T, dir mps.Dir, uuid string) net.Conn {
	t.Helper()
	connection, err := net.Dial("unix", filepath.Join(dir.PipeDir(uuid), "control"))
	expect.NoError(t, err)
	t.Cleanup(func() { _ = connection.Close() })
	return connection
}

func connected(t *testing.T, connection net.Conn) bool {
	t.Helper()
	expect.NoError(t, connection.SetReadDeadline(time.Now().Add(time.Millisecond)))
	_, err := connection.Read(make([]byte, 1))
	return errors.Is(err, os.ErrDeadlineExceeded)
}

func gone(pid int) error {
	if err := unix.Kill(pid, 0); !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("process %d is there (%v)", pid, err)
	}
	return nil
}

func TestDaemonsLiveAndDie(t *testing.T) {
	t.Parallel()
	dir, uuids := shortDir(t), newGPUs(t)
	args := []string{"--mps-dir=" + string(dir), "--mps-control=" + standIn(t), nvmlFlag(t)}
	first := start(t, args...)
	awaitReady(t, dir, uuids)

	// One daemon is killed: it is told at once, and nothing happens to the others.
	bystander := client(t, dir, uuids[1])
	killed := time.Now()
	expect.NoError(t, unix.Kill(daemonPID(t, dir, uuids[0]), unix.SIGKILL))
	awaitStatus(t, dir, uuids[0], "the killed daemon is down", func(s mps.Status) bool {
		return s.State == mps.Down && strings.Contains(s.Reason, "signal: killed")
	})
	t.Logf("told after %s", time.Since(killed))
	awaitReady(t, dir, uuids)
	if s, err := dir.Status(uuids[0]); err != nil || s.Restarts != 1 {
		t.Errorf("status %+v, %v", s, err)
	}
	if !connected(t, bystander) {
		t.Error("the client of another GPU was cut off")
	}

	// Another supervisor keeps its hands off.
	second := start(t, args...)
	<-second.ended
	if code := second.cmd.ProcessState.ExitCode(); code != 1 ||
		!strings.Contains(second.output.String(), "another gpu-mps-supervisor runs") {
		t.Errorf("a second supervisor: exit code %d, %s", code, second.output.String())
	}
	awaitReady(t, dir, uuids)

	// The supervisor is killed: everybody sees it, and no daemon outlives it.
	daemons := func() (pids []int) {
		for _, uuid := range uuids {
			pids = append(pids, daemonPID(t, dir, uuid))
		}
		return pids
	}
	pids := daemons()
	first.end(t, os.Kill)
	if err := dir.Check(uuids[0]); err == nil {
		t.Error("what a dead supervisor said is still believed")
	}
	for _, pid := range pids {
		eventually(t, "the daemons are gone", func() error { return gone(pid) })
	}

	// The next one cleans up and goes on; it is asked to end, and does.
	third := start(t, args...)
	awaitReady(t, dir, uuids)
	pids = daemons()
	third.end(t, syscall.SIGTERM)
	expect.Equal(t, 0, third.cmd.ProcessState.ExitCode(), "exit code")
	for i, uuid := range uuids {
		expect.NoError(t, gone(pids[i]))
		if s, err := dir.Status(uuid); err != nil || s.State != mps.Down || !strings.Contains(s.Reason, "stopped") {
			t.Errorf("status %+v, %v", s, err)
		}
	}
	expect.Error(t, dir.Check(uuids[0]), "does not run")
}

// The way of a node whose driver is not in the root directory of this process.
func TestDriverRoot(t *testing.T) {
	host := t.TempDir()
	content, err := os.ReadFile(standIn(t))
	expect.NoError(t, err)
	spec, err := sim.Load(machineFile)
	expect.NoError(t, err)
	testneeds.DeviceNodes(t)
	root := filepath.Join(host, "driver")
	expect.NoError(t, spec.ForNode("n1").WriteRoot(root,
		sim.Part{Name: sim.NVMLLibrary, Content: library(t)},
		sim.Part{Name: "nvidia-cuda-mps-control", Content: content}))
	if err := mayUnshare(t.Context()); err != nil {
		testneeds.Skipf(t, "make a mount namespace: %v: run as root", err)
	}
	dir, uuids := shortDir(t), newGPUs(t)
	p := start(t, "--mps-dir="+string(dir), "--host-root="+host, "--driver-root=/driver",
		"--sysfs-root="+filepath.Join(root, sim.SysDir))
	awaitReady(t, dir, uuids)
	link, err := os.Readlink(fmt.Sprintf("/proc/%d/root", daemonPID(t, dir, uuids[0])))
	if err != nil || link != root {
		t.Errorf("the daemon's root is %s, want %s (%v)", link, root, err)
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil || strings.Contains(string(mounts), root) {
		t.Errorf("the daemon's mount is seen outside of it (%v)", err)
	}
	p.end(t, syscall.SIGTERM)
	expect.Equal(t, 0, p.cmd.ProcessState.ExitCode(), "exit code")
}

func mayUnshare(ctx context.Context) error {
	return exec.CommandContext(ctx, "unshare", "--mount", "true").Run()
}

func TestNoControlProgram(t *testing.T) {
	dir, uuids := shortDir(t), newGPUs(t)
	start(t, "--mps-dir="+string(dir), "--mps-control="+filepath.Join(t.TempDir(), "none"), nvmlFlag(t))
	eventually(t, "the missing program is told of", func() error {
		err := dir.Check(uuids[0])
		if err == nil || !strings.Contains(err.Error(), "the driver there comes without its MPS programs") {
			return fmt.Errorf("status: %w", err)
		}
		return nil
	})
}

func TestDirThatCannotBeWritten(t *testing.T) {
	p := start(t, "--mps-dir=/proc/mps", nvmlFlag(t))
	<-p.ended
	if code := p.cmd.ProcessState.ExitCode(); code != 1 || !strings.Contains(p.output.String(), "/proc/mps") {
		t.Errorf("exit code %d, %s", code, p.output.String())
	}
}
