package supervisor

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/gpushare/dra-driver-gpushare/pkg/mps"
)

// pipeDirMode lets clients of every uid in. Clients reach the daemon through
// sockets and named pipes that it makes for all of them; what they may make
// beside these, NVIDIA does not say, so they may make files, as in the
// directory's default place in /tmp. The sticky bit keeps them from removing
// another's, but not those that run as root, as the daemon does and containers
// usually do: see pipes.
const pipeDirMode = 0o777 | fs.ModeSticky

// maxLogBytes is how much a daemon's log may take of /run, which is memory.
// The daemon writes some lines for each client and never starts a new file.
const maxLogBytes = 4 << 20

// prepareDirs makes the card's directories, with nothing in the pipe directory
// of what a dead daemon left: a client would wait at a pipe without an end. The
// directory itself stays, since containers have it mounted.
func prepareDirs(dir mps.Dir, uuid string) error {
	pipes, logs, kept := dir.PipeDir(uuid), dir.LogDir(uuid), dir.KeptDir(uuid)
	if err := os.RemoveAll(kept); err != nil {
		return fmt.Errorf("remove what was kept of a dead MPS control daemon: %w", err)
	}
	if err := errors.Join(os.MkdirAll(pipes, 0o755), os.MkdirAll(logs, 0o755), os.MkdirAll(kept, 0o700)); err != nil {
		return fmt.Errorf("make the directories of the MPS control daemon: %w", err)
	}
	if err := os.Chmod(pipes, pipeDirMode); err != nil {
		return fmt.Errorf("open the pipe directory of the MPS control daemon to clients: %w", err)
	}
	left, err := os.ReadDir(pipes)
	if err != nil {
		return fmt.Errorf("look for what a dead MPS control daemon left: %w", err)
	}
	for _, entry := range left {
		if err := os.RemoveAll(filepath.Join(pipes, entry.Name())); err != nil {
			return fmt.Errorf("remove what a dead MPS control daemon left: %w", err)
		}
	}
	return nil
}

// boundLogs empties the logs in dir that have become too long. It goes by the
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
