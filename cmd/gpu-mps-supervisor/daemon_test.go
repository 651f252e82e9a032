// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/mps"
)

// pluginEnv makes this test's program a plugin that declares what its value says of the directory that its
// argument names.
const pluginEnv = "GPU_MPS_PLUGIN_TEST"

// declare is that plugin: it says so when it has declared, and then waits to be killed.
func declare(what mps.Declaration, dir mps.Dir) int {
	withdraw, err := dir.Declare(what)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	fmt.Println("declared")
	_, _ = os.Stdin.Read(make([]byte, 1)) // Until the test ends.
	if err := withdraw(); err != nil {
		return 1
	}
	return 0
}

// plugin starts one that has declared this. kill ends it.
func plugin(t *testing.T, dir mps.Dir, what mps.Declaration) (kill func()) {
	t.Helper()
	executable, err := os.Executable()
	expect.NoError(t, err)
	cmd := exec.Command(executable, string(dir))
	cmd.Env, cmd.Stderr = []string{pluginEnv + "=" + string(what)}, os.Stderr
	_, err = cmd.StdinPipe()
	expect.NoError(t, err)
	out, err := cmd.StdoutPipe()
	expect.NoError(t, err)
	expect.NoError(t, cmd.Start())
	t.Cleanup(func() { _ = cmd.Process.Kill() })
	if n, err := out.Read(make([]byte, 1)); err != nil || n == 0 {
		t.Fatalf("the plugin declares nothing: %v", err)
	}
	return func() {
		t.Helper()
		expect.NoError(t, cmd.Process.Signal(syscall.SIGKILL))
		if err := cmd.Wait(); cmd.ProcessState == nil {
			t.Fatal(err)
		}
	}
}

// A plugin that is killed while nothing uses MPS starts no daemons; the next one does that declares MPS in use.
func TestPluginIsKilledOnAnIdleNode(t *testing.T) {
	t.Parallel()
	dir, uuids := shortDir(t), newGPUs(t)
	kill := plugin(t, dir, mps.Idle)
	p := start(t, "--mps-dir="+string(dir), "--mps-control="+standIn(t), nvmlFlag(t))
	eventually(t, "the supervisor runs", func() error {
		if err := dir.Check(uuids[0]); err == nil || !strings.Contains(err.Error(), "serves no MPS control daemon") {
			return fmt.Errorf("the GPU's daemon: %w", err)
		}
		return nil
	})
	kill()
	// The supervisor, which waited for the plugin's lock, has it for a moment.
	eventually(t, "the plugin that was killed has left nothing", func() error {
		if declared, err := dir.Declared(); err != nil || declared != mps.Undeclared {
			return fmt.Errorf("%q, %w", declared, err)
		}
		return nil
	})
	plugin(t, dir, mps.InUse)
	awaitReady(t, dir, uuids)
	if log := p.output.String(); strings.Count(log, "MPS control daemons are needed") != 1 ||
		!strings.Contains(log, `"MPS control daemons are needed" declared="in-use"`) {
		t.Error("daemons were started for nobody")
	}
	p.end(t, syscall.SIGTERM)
}

// One daemon serves all GPUs where that is wanted, with a limit for each.
func TestDaemonForAllGPUs(t *testing.T) {
	t.Parallel()
	dir, uuids := shortDir(t), newGPUs(t)
	control := standIn(t)
	expect.NoError(t, dir.WantNodeDaemon(true))
	p := start(t, "--mps-dir="+string(dir), "--mps-control="+control, nvmlFlag(t))
	awaitReady(t, dir.OfNode(), uuids)
	environ, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", daemonPID(t, dir.OfNode(), uuids[0])))
	if err != nil || !strings.Contains(string(environ), "CUDA_VISIBLE_DEVICES="+strings.Join(uuids, ",")+"\x00") {
		t.Errorf("the daemon's environment is %q, %v", environ, err)
	}
	for i, uuid := range uuids[:2] {
		limits := mps.Limits{MemoryMiB: int64(i+1) * 1024, ThreadPercent: 100}
		expect.NoError(t, dir.OfNode().Admit(t.Context(), uuid, limits))
	}
	for command, want := range map[string]string{"get_default_device_pinned_mem_limit 0": "1024M",
		"get_default_device_pinned_mem_limit 1": "2048M", "get_default_device_pinned_mem_limit 2": "",
		"get_default_active_thread_percentage": "100"} {
		ask := exec.CommandContext(t.Context(), control)
		ask.Env = []string{"CUDA_MPS_PIPE_DIRECTORY=" + dir.OfNode().DaemonDir(uuids[0])}
		ask.Stdin = strings.NewReader(command + "\n")
		answer, err := ask.CombinedOutput()
		if got := strings.TrimSpace(string(answer)); err != nil || got != want {
			t.Errorf("%s: %q, %v, want %q", command, got, err, want)
		}
	}
	first, last := client(t, dir.OfNode(), uuids[0]), client(t, dir.OfNode(), uuids[3])
	// It does not end while claims use it.
	for _, uuid := range uuids[:2] {
		expect.NoError(t, dir.OfNode().SetUse(uuid, mps.Use{}))
	}
	expect.NoError(t, dir.WantNodeDaemon(false))
	// It is ended although it has clients: nobody says that they are there.
	awaitStatus(t, dir.OfNode(), uuids[0], "the daemon has ended", func(s mps.Status) bool {
		return s.State == mps.Down && strings.Contains(s.Reason, "nothing on the node uses MPS")
	})
	eventually(t, "its clients are cut off", func() error {
		if connected(t, first) || connected(t, last) {
			return errors.New("one is connected")
		}
		return nil
	})
	awaitReady(t, dir, uuids)
	p.end(t, syscall.SIGTERM)
}

// as has a client of the daemon say a word, and returns CUDA's error, empty for none.
func as(t *testing.T, connection net.Conn, what string) string {
	t.Helper()
	expect.NoError(t, connection.SetDeadline(time.Now().Add(10*time.Second)))
	_, err := fmt.Fprintln(connection, what)
	expect.NoError(t, err)
	answer, err := bufio.NewReader(connection).ReadString('\x04')
	expect.NoError(t, err)
	return strings.TrimSuffix(answer, "\x04")
}

// A fault of one program ends the programs of all clients, on its GPU. The supervisor says so while the GPU takes no
// others, and that it serves again.
func TestFaultEndsAllClientsOfAGPU(t *testing.T) {
	t.Parallel()
	const illegal = "CUDA_ERROR_ILLEGAL_ADDRESS"
	dir, uuids := serving(t)
	faulty, neighbour, elsewhere := client(t, dir, uuids[0]), client(t, dir, uuids[0]), client(t, dir, uuids[1])
	for _, connection := range []net.Conn{faulty, neighbour, elsewhere} {
		expect.Equal(t, "", as(t, connection, "client"), "a client at first")
	}
	expect.Equal(t, illegal, as(t, faulty, "fault"), "the faulty program")
	expect.Equal(t, illegal, as(t, neighbour, "synchronize"), "its neighbour")
	expect.Equal(t, "", as(t, elsewhere, "synchronize"), "a client of another GPU")
	expect.Equal(t, "CUDA_ERROR_MPS_SERVER_NOT_READY", as(t, client(t, dir, uuids[0]), "client"), "a new client")
	awaitStatus(t, dir, uuids[0], "the fault is told of", func(s mps.Status) bool {
		return s.State == mps.Down && s.Fault != nil && strings.Contains(s.Reason, "fatal fault")
	})
	if s, err := dir.Status(uuids[0]); err != nil || len(s.Fault.Lost) == 0 || s.Fault.Lost[0].PID != os.Getpid() ||
		s.Fault.Lost[0].Program == "" {
		t.Errorf("lost are %+v, %v", s.Fault.Lost, err)
	}
	expect.NoErrorf(t, dir.Check(uuids[1]), "another GPU")
	for _, connection := range []net.Conn{faulty, neighbour} {
		expect.NoError(t, connection.Close())
	}
	awaitReady(t, dir, uuids)
	if s, err := dir.Status(uuids[0]); err != nil || s.Restarts != 0 || s.Fault.Over.IsZero() {
		t.Errorf("status %+v, %v", s, err)
	}
	expect.Equal(t, "", as(t, client(t, dir, uuids[0]), "client"), "a client after the fault")
}

// On a node without processor time to spare a daemon answers after 20 seconds. A container that starts meanwhile would
// fail for good, if its pod is not restarted: it waits instead, and the daemon's clients go on.
func TestContainerWaitsForALateDaemon(t *testing.T) {
	t.Parallel()
	dir, uuids := serving(t)
	daemon := daemonPID(t, dir, uuids[0])
	goOn := func() error { return unix.Kill(daemon, unix.SIGCONT) }
	expect.NoError(t, unix.Kill(daemon, unix.SIGSTOP))
	t.Cleanup(func() { _ = goOn() })
	stopped := time.Now()
	awaitStatus(t, dir, uuids[0], "the silent daemon is late, and not down", func(s mps.Status) bool {
		return s.State == mps.Late
	})
	waited := make(chan error, 1)
	go func() {
		waited <- dir.Await(t.Context(), uuids[:1], mps.Waiting{ID: "c1", Namespace: "team", Pod: "job", UID: "u"})
	}()
	eventually(t, "it is told who waits", func() error {
		waiting, err := dir.Waiting(uuids[0])
		if err == nil && (len(waiting) != 1 || waiting[0].Pod != "job") {
			err = fmt.Errorf("%+v", waiting)
		}
		return err
	})
	time.Sleep(time.Until(stopped.Add(20 * time.Second))) // the daemon's silence is the subject
	select {
	case err := <-waited:
		t.Fatalf("the container was refused, or started, while the daemon was silent: %v", err)
	default:
	}
	expect.NoError(t, goOn())
	expect.NoErrorf(t, <-waited, "the container was not started")
	if waiting, err := dir.Waiting(uuids[0]); err != nil || len(waiting) > 0 {
		t.Errorf("somebody waits still: %+v, %v", waiting, err)
	}
	if s, err := dir.Status(uuids[0]); err != nil || s.Restarts != 0 {
		t.Errorf("the daemon was killed: %+v, %v", s, err)
	}
}
