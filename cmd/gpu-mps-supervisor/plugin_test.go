// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

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
	if _, err := cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
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
		!strings.Contains(log, `"MPS control daemons are needed" declared="in use"`) {
		t.Error("daemons were started for nobody")
	}
	p.end(t, syscall.SIGTERM)
}
