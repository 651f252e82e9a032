package state

import (
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/types"
)

const lockFile = "lock"

// LockClaim keeps everybody else, in this process and in others, from working
// on the same claim until the returned function is called. A process that dies
// lets go of its locks.
//
// Locks are one-byte ranges of one file, so that nothing has to be cleaned up:
// byte 0 is the node's, the others are the claims', by hash. Two claims that
// share a byte only wait for each other.
func (s *Store) LockClaim(uid types.UID) (unlock func(), err error) {
	h := fnv.New64a()
	h.Write([]byte(uid))
	return s.lock(1 + int64(h.Sum64()>>2))
}

// LockNode keeps everybody else from the step in which a claim is checked
// against all others and entered. It may be taken while LockClaim is held, not
// the other way round.
func (s *Store) LockNode() (unlock func(), err error) {
	return s.lock(0)
}

func (s *Store) lock(offset int64) (func(), error) {
	path := filepath.Join(s.dir, lockFile)
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, filePerm)
	if err != nil {
		return nil, fmt.Errorf("open the lock file: %w", err)
	}
	// Open-file-description locks belong to this descriptor and not to the
	// process, so that they also order the goroutines of one process.
	flock := unix.Flock_t{Type: unix.F_WRLCK, Whence: int16(io.SeekStart), Start: offset, Len: 1}
	for {
		err = unix.FcntlFlock(f.Fd(), unix.F_OFD_SETLKW, &flock)
		if !errors.Is(err, unix.EINTR) {
			break
		}
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("lock %s: %w", path, err), f.Close())
	}
	return func() { _ = f.Close() }, nil
}
