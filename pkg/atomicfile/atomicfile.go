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
)

// TempSuffix ends the name of the temporary file that Write uses. The name is
// fixed – path plus TempSuffix – and not random, so that what a kill leaves
// behind can be found and removed, and is overwritten by the next Write.
const TempSuffix = ".tmp"

// Write replaces the file at path. With sync, the content is on disk before it
// becomes visible. The rename itself is not synced: after a power failure the
// older content may be back, but never a mixture. Two concurrent Writes to one
// path are the caller's to prevent.
func Write(path string, data []byte, perm fs.FileMode, sync bool) error {
	return replace(path, bytes.NewReader(data), perm, sync)
}

// Copy is Write of what is read, which is not synced and need not fit into memory.
func Copy(path string, from io.Reader, perm fs.FileMode) error {
	return replace(path, from, perm, false)
}

func replace(path string, from io.Reader, perm fs.FileMode, sync bool) error {
	temp := path + TempSuffix
	if err := writeTemp(temp, from, perm, sync); err != nil {
		return errors.Join(err, Remove(temp))
	}
	if err := os.Rename(temp, path); err != nil {
		return errors.Join(fmt.Errorf("replace %s: %w", path, err), Remove(temp))
	}
	return nil
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
