// SPDX-License-Identifier: Apache-2.0

package state

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/types"
)

const lockFile = "lock"

const (
	// pollFirst and pollMost bound how often a lock is tried again that another
	// process holds, which happens while two instances run during an update.
	pollFirst = time.Millisecond
	pollMost  = 16 * time.Millisecond
)

// LockClaim keeps everybody else, in this process and in others, from working
// on the same claim until the returned function is called. A process that dies
// lets go of its locks. It waits for the lock no longer than ctx lasts.
//
// Locks are one-byte ranges of one file, so that nothing has to be cleaned up:
// byte 0 is the node's, the others are the claims', by hash. Two claims that
// share a byte only wait for each other.
func (s *Store) LockClaim(ctx context.Context, uid types.UID) (unlock func(), err error) {
	h := fnv.New64a()
	h.Write([]byte(uid))
	unlock, err = s.lock(ctx, 1+int64(h.Sum64()>>2))
	if err != nil {
		return nil, fmt.Errorf("claim %s is being worked on: %w", uid, err)
	}
	return unlock, nil
}

// LockNode keeps everybody else from the step in which a claim is checked
// against all others and entered. It may be taken while LockClaim is held, not
// the other way round. It waits for the lock no longer than ctx lasts.
func (s *Store) LockNode(ctx context.Context) (unlock func(), err error) {
	return s.lock(ctx, 0)
}

// LockTimeSlice keeps everybody else from setting the GPU's time slice. It may be taken while LockClaim is held, and
// LockNode while it is, not the other way round.
func (s *Store) LockTimeSlice(ctx context.Context, uuid string) (unlock func(), err error) {
	return s.LockClaim(ctx, types.UID("time-slice/"+uuid))
}

// lock queues up behind the goroutines of this process first, so that only one of
// them ever tries what other processes may hold.
func (s *Store) lock(ctx context.Context, offset int64) (func(), error) {
	leave, err := s.queues.enter(ctx, offset)
	if err != nil {
		return nil, fmt.Errorf("wait for the lock in %s: %w", s.dir, err)
	}
	f, err := s.lockFile(ctx, offset)
	if err != nil {
		leave()
		return nil, err
	}
	return func() {
		_ = f.Close()
		leave()
	}, nil
}

// lockFile locks the byte at offset; closing the file unlocks it.
func (s *Store) lockFile(ctx context.Context, offset int64) (*os.File, error) {
	for {
		f, err := s.openLock()
		if err != nil {
			return nil, err
		}
		if err := lockByte(ctx, f, offset); err != nil {
			return nil, errors.Join(err, f.Close())
		}
		// Whoever comes later locks the file that is there then.
		if s.isLock(f) {
			return f, nil
		}
		if err := f.Close(); err != nil {
			return nil, err
		}
	}
}

// openLock opens the lock file. Where it is gone the directory was lost.
func (s *Store) openLock() (*os.File, error) {
	path := filepath.Join(s.dir, lockFile)
	f, err := os.OpenFile(path, os.O_RDWR, filePerm)
	if errors.Is(err, fs.ErrNotExist) {
		if err := s.EnsureDir(); err != nil {
			return nil, err
		}
		f, err = os.OpenFile(path, os.O_RDWR, filePerm)
	}
	if err != nil {
		return nil, fmt.Errorf("open the lock file: %w", err)
	}
	return f, nil
}

// isLock reports whether an open file is the lock file still.
func (s *Store) isLock(f *os.File) bool {
	mine, err := f.Stat()
	if err != nil {
		return false
	}
	now, err := os.Stat(filepath.Join(s.dir, lockFile))
	return err == nil && os.SameFile(mine, now)
}

// lockByte waits until nobody else has the byte. The kernel's own waiting,
// F_OFD_SETLKW, would not end with ctx.
func lockByte(ctx context.Context, f *os.File, offset int64) error {
	// Open-file-description locks belong to this descriptor and not to the
	// process, so that they order other instances whatever this one has open.
	flock := unix.Flock_t{Type: unix.F_WRLCK, Whence: int16(io.SeekStart), Start: offset, Len: 1}
	for delay := pollFirst; ; delay = min(2*delay, pollMost) {
		err := unix.FcntlFlock(f.Fd(), unix.F_OFD_SETLK, &flock)
		switch {
		case err == nil:
			return nil
		case errors.Is(err, unix.EINTR):
			continue
		case !errors.Is(err, unix.EAGAIN) && !errors.Is(err, unix.EACCES):
			return fmt.Errorf("lock %s: %w", f.Name(), err)
		}
		if err := pause(ctx, delay); err != nil {
			return fmt.Errorf("lock %s, which another process holds: %w", f.Name(), err)
		}
	}
}

// pause waits for d or the end of ctx.
func pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-timer.C:
		return nil
	}
}

// queues order the goroutines of one process that want a lock. The zero value is
// ready.
type queues struct {
	mu       sync.Mutex
	byOffset map[int64]*queue
}

type queue struct {
	// turn holds one token while nobody has the lock.
	turn chan struct{}
	// users are those who have the lock or wait for it.
	users int
}

// enter waits until it is the caller's turn at the offset, until leave is called.
func (q *queues) enter(ctx context.Context, offset int64) (leave func(), err error) {
	mine := q.join(offset)
	select {
	case <-mine.turn:
		return func() {
			mine.turn <- struct{}{}
			q.part(offset)
		}, nil
	case <-ctx.Done():
		q.part(offset)
		return nil, context.Cause(ctx)
	}
}

func (q *queues) join(offset int64) *queue {
	q.mu.Lock()
	defer q.mu.Unlock()
	mine := q.byOffset[offset]
	if mine == nil {
		mine = &queue{turn: make(chan struct{}, 1)}
		mine.turn <- struct{}{}
		if q.byOffset == nil {
			q.byOffset = map[int64]*queue{}
		}
		q.byOffset[offset] = mine
	}
	mine.users++
	return mine
}

func (q *queues) part(offset int64) {
	q.mu.Lock()
	defer q.mu.Unlock()
	mine := q.byOffset[offset]
	if mine.users--; mine.users == 0 {
		delete(q.byOffset, offset)
	}
}
