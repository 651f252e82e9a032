// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/mps"
	"github.com/gpushare/dra-driver-gpushare/tests/harness"
)

func sameFile(t *testing.T, paths ...string) bool {
	t.Helper()
	var infos []os.FileInfo
	for _, path := range paths {
		info, err := os.Lstat(path)
		expect.NoError(t, err)
		infos = append(infos, info)
	}
	return os.SameFile(infos[0], infos[1])
}

// Whatever a container runs as, with whatever capabilities: it makes no file that others
// would see and that would fill the host's memory, removes nothing of the daemon's, and
// is in nobody's way while a daemon is started again.
func pipesOutOfReach(t *testing.T) {
	ns := cluster.Namespace(t)
	ns.Template(t, "one", harness.Requests(harness.Capped("mps", 0, "memory", "1Gi")))
	ns.Run(t, harness.Pod("attacker", faultyNode, harness.FromTemplate("one")),
		harness.Pod("neighbour", faultyNode, harness.FromTemplate("one")))
	uuid := cluster.GPUs(t, faultyNode)[0].UUID
	dir := ns.Inside(t, "attacker", pipeDir)
	written, err := fill(filepath.Join(dir, "large"), 300<<20)
	if written > 0 || !errors.Is(err, syscall.EROFS) {
		t.Errorf("a container wrote %d bytes to what it shares with others (%v)", written, err)
	}
	for i := range 2000 {
		if err := os.WriteFile(filepath.Join(dir, fmt.Sprint("file-", i)), nil, 0o600); !errors.Is(err, syscall.EROFS) {
			t.Fatalf("a container made file %d beside the daemon's: %v", i, err)
		}
	}
	for what, attempt := range map[string]func() error{
		"removes the socket":   func() error { return os.Remove(filepath.Join(dir, mps.SocketName)) },
		"closes the socket":    func() error { return os.Chmod(filepath.Join(dir, mps.SocketName), 0) },
		"closes the directory": func() error { return os.Chmod(dir, 0) },
	} {
		if err := attempt(); !errors.Is(err, syscall.EROFS) {
			t.Errorf("a container %s: %v", what, err)
		}
	}

	ctx, stop := context.WithCancel(t.Context())
	planted := make(chan error, 1)
	go func() { planted <- plant(ctx, dir) }()
	killDaemon(t, faultyNode, uuid)
	harness.Eventually(t, "another daemon to serve", func(context.Context) error {
		status, err := cluster.MPS(faultyNode).Status(uuid)
		if err == nil && status.Restarts == 0 {
			err = errors.New("it is not known that it has ended")
		}
		return errors.Join(err, cluster.MPS(faultyNode).Check(uuid))
	})
	stop()
	if err := <-planted; err != nil {
		t.Error(err)
	}
	cluster.PublishesInAnyOrder(t, faultyNode, harness.DevicesIn("mps")...)
	entries, err := os.ReadDir(cluster.MPS(faultyNode).PipeDir(uuid))
	if err != nil || len(entries) != 1 || entries[0].Name() != mps.SocketName {
		t.Errorf("clients of the GPU have %v (%v)", entries, err)
	}
	ns.Run(t, harness.Pod("after", faultyNode, harness.FromTemplate("one")))
	for _, pod := range []string{"neighbour", "after"} {
		seesGPUAndDaemon(t, ns, pod, "main")
	}
	cluster.ReplaceSupervisor(t, faultyNode)
}

// fill writes so many bytes to a new file.
func fill(path string, size int64) (written int64, err error) {
	file, err := os.Create(path)
	if err != nil {
		return 0, err
	}
	defer file.Close()
	for chunk := make([]byte, 1<<20); written < size && err == nil; {
		var n int
		n, err = file.Write(chunk)
		written += int64(n)
	}
	return written, err
}

// plant makes and removes files in a directory until the context ends. An error says
// that it could.
func plant(ctx context.Context, dir string) error {
	for i := 0; ctx.Err() == nil; i++ {
		path := filepath.Join(dir, fmt.Sprint("planted-", i))
		if err := os.WriteFile(path, nil, 0o600); err == nil {
			return errors.Join(fmt.Errorf("made %s", path), os.Remove(path))
		}
	}
	return nil
}

// A container that was started by an earlier version has the directory mounted writable.
// What root in it removes is put back; nobody who is connected notices, and what starts
// afterwards finds the daemon.
func pipesRemoved(t *testing.T) {
	ns := cluster.Namespace(t)
	ns.Template(t, "one", harness.Requests(harness.Capped("mps", 0, "memory", "1Gi")))
	ns.Run(t, harness.Pod("neighbour", faultyNode, harness.FromTemplate("one")))
	uuid := cluster.GPUs(t, faultyNode)[0].UUID
	daemon, connected := cluster.MPSDaemon(t, faultyNode, uuid).Pid, connect(t, uuid)

	expect.NoError(t, os.Remove(filepath.Join(cluster.MPS(faultyNode).PipeDir(uuid), mps.SocketName)))
	harness.Eventually(t, "the neighbour to find the daemon again", func(context.Context) error {
		_, err := ns.Exec(t, "neighbour", "main", "stat", filepath.Join(pipeDir, mps.SocketName))
		return errors.Join(err, cluster.MPS(faultyNode).Check(uuid))
	})
	connected()
	connect(t, uuid)()
	if now := cluster.MPSDaemon(t, faultyNode, uuid).Pid; now != daemon {
		t.Errorf("the daemon was process %d and is %d", daemon, now)
	}
	cluster.PublishesInAnyOrder(t, faultyNode, harness.DevicesIn("mps")...)
	ns.Run(t, harness.Pod("after", faultyNode, harness.FromTemplate("one")))
}
