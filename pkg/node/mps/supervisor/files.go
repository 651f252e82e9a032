// SPDX-License-Identifier: Apache-2.0

package supervisor

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
	"k8s.io/klog/v2"

	"github.com/gpushare/dra-driver-gpushare/pkg/node/mps"
)

// pipeDirMode lets clients of every uid find the socket, and makes no files but root's:
// clients make none. Containers have the directory mounted read-only; those that were
// started with an earlier version of the driver may write where this lets them.
const pipeDirMode = 0o755

// maxLogBytes is how much a daemon's log may take of /run, which is memory.
// The daemon writes some lines for each client and never starts a new file.
const maxLogBytes = 4 << 20

// prepareDirs makes the GPU's directories. The daemon's own is a new one. What clients
// have stays the same directory, since containers have it mounted, without a socket: of
// a dead daemon's they would find no end.
func prepareDirs(ctx context.Context, dir mps.Dir, uuid string) error {
	own, pipes, logs := dir.DaemonDir(uuid), dir.PipeDir(uuid), dir.LogDir(uuid)
	for _, left := range []string{own, dir.SpareLink(uuid), filepath.Join(pipes, mps.SocketName)} {
		if err := os.RemoveAll(left); err != nil {
			return fmt.Errorf("remove what a dead MPS control daemon left: %w", err)
		}
	}
	if err := errors.Join(os.MkdirAll(own, 0o755), os.MkdirAll(pipes, 0o755), os.MkdirAll(logs, 0o755)); err != nil {
		return fmt.Errorf("make the directories of the MPS control daemon: %w", err)
	}
	// Whatever the umask is.
	if err := errors.Join(os.Chmod(own, pipeDirMode), os.Chmod(pipes, pipeDirMode)); err != nil {
		return fmt.Errorf("open the directories of the MPS control daemon to its servers and clients: %w", err)
	}
	// In the way of nothing: whoever can still make files there must not keep a daemon
	// from its start.
	if err := empty(pipes); err != nil {
		klog.FromContext(ctx).Error(err, "Files of others stay in the pipe directory of the GPU's clients", "directory",
			pipes)
	}
	return nil
}

// empty removes what is in a directory, as far as it can.
func empty(dir string) error {
	entries, err := os.ReadDir(dir)
	errs := []error{err}
	for _, entry := range entries {
		errs = append(errs, os.RemoveAll(filepath.Join(dir, entry.Name())))
	}
	return errors.Join(errs...)
}

// boundLogs empties the logs in dir that have become too long. It uses the
// space they take: a program that does not append leaves a hole at the start.
func boundLogs(dir string) error {
	logs, err := filepath.Glob(filepath.Join(dir, "*.log"))
	if err != nil {
		return err
	}
	var errs []error
	for _, path := range logs {
		var stat unix.Stat_t
		if err := unix.Lstat(path, &stat); err != nil {
			errs = append(errs, fmt.Errorf("look at %s: %w", path, err))
			continue
		}
		const blockBytes = 512 // stat(2)
		if stat.Mode&unix.S_IFMT == unix.S_IFREG && stat.Blocks*blockBytes > maxLogBytes {
			errs = append(errs, os.Truncate(path, 0))
		}
	}
	return errors.Join(errs...)
}
