// SPDX-License-Identifier: Apache-2.0

// Package atomicfile replaces files so that a reader, or a process that starts
// after a kill, sees the old content or the new one and nothing in between.
package atomicfile

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// TempSuffix ends the name of the temporary file that Write uses. The name is
// fixed – path plus TempSuffix – and not random, so that what a kill leaves
// behind can be found and removed, and is overwritten by the next Write.
const TempSuffix = ".tmp"

// Write replaces the file at path. With sync, the content is on disk before it
// becomes visible. The rename itself is not synced: after a power failure the
// older content may be back, but never a mixture. Of two concurrent Writes to one path,
// which may be of two processes, one waits for the other for a moment, and then fails.
func Write(path string, data []byte, perm fs.FileMode, sync bool) error {
	return replace(path, bytes.NewReader(data), perm, sync)
}

// Ensure is Write without sync, unless the file has the content: a container runtime that mounts a file fails if the
// file is replaced at that moment.
func Ensure(path string, data []byte, perm fs.FileMode) error {
	if there, err := os.ReadFile(path); err == nil && bytes.Equal(there, data) {
		return nil
	}
	return Write(path, data, perm, false)
}

// Copy is Write of what is read, which is not synced and need not fit into memory.
func Copy(path string, from io.Reader, perm fs.FileMode) error {
	return replace(path, from, perm, false)
}

func replace(path string, from io.Reader, perm fs.FileMode, sync bool) error {
	temp := path + TempSuffix
	unlock, err := lock(temp, perm)
	if err != nil {
		return fmt.Errorf("replace %s: %w", path, err)
	}
	defer unlock()
	if err := writeTemp(temp, from, perm, sync); err != nil {
		return errors.Join(err, Remove(temp))
	}
	if err := os.Rename(temp, path); err != nil {
		return errors.Join(fmt.Errorf("replace %s: %w", path, err), Remove(temp))
	}
	return nil
}

// lockTries and lockPause bound how long it is waited for another write of the same path.
const (
	lockTries = 100
	lockPause = 10 * time.Millisecond
)

// lock makes the temporary file, and keeps it for one writer until unlock is called, or its
// process ends.
func lock(temp string, perm fs.FileMode) (unlock func(), err error) {
	for range lockTries {
		// Not for writing: a program that is replaced may be started before this is closed.
		f, err := os.OpenFile(temp, os.O_RDONLY|os.O_CREATE, perm)
		if err != nil {
			return nil, err
		}
		err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		busy := errors.Is(err, unix.EWOULDBLOCK) || errors.Is(err, unix.EINTR)
		// Where the file system has no locks, it is for one writer.
		if !busy && isAt(f, temp) {
			return func() { _ = f.Close() }, nil
		}
		if err := f.Close(); err != nil {
			return nil, err
		}
		time.Sleep(lockPause)
	}
	return nil, fmt.Errorf("another write of it has not ended after %s: if that lasts, see what holds %s open",
		lockTries*lockPause, temp)
}

// isAt reports whether a file is the one that is at a path now: another writer may have given
// it its name, or removed it.
func isAt(f *os.File, path string) bool {
	here, err := f.Stat()
	if err != nil {
		return false
	}
	there, err := os.Stat(path)
	return err == nil && os.SameFile(here, there)
}

func writeTemp(path string, from io.Reader, perm fs.FileMode, sync bool) (err error) {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, perm)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	if _, err := io.Copy(f, from); err != nil {
		return err
	}
	if sync {
		return f.Sync()
	}
	return nil
}

// Remove removes the file at path; that there is none is not an error.
func Remove(path string) error {
	err := os.Remove(path)
	if err == nil || errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	// A read-only file system refuses before it looks whether there is anything.
	if _, statErr := os.Lstat(path); errors.Is(statErr, fs.ErrNotExist) {
		return nil
	}
	return err
}
