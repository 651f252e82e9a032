// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/mps"
)

// One daemon serves all GPUs where that is wanted, with a limit for each.
func TestDaemonForAllGPUs(t *testing.T) {
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
	eventually(t, "the daemon has ended", func() error {
		if s, err := dir.OfNode().Status(uuids[0]); err != nil || s.State != mps.Down ||
			!strings.Contains(s.Reason, "nothing on the node uses MPS") {
			return fmt.Errorf("status %+v, %w", s, err)
		}
		return nil
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
