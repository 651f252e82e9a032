// SPDX-License-Identifier: Apache-2.0

package mps

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// Declaration is what the plugins declare of MPS on their node.
type Declaration string

const (
	// Undeclared is that no plugin declares anything: none runs, it does not know yet, or it is of an
	// earlier version and uses MPS.
	Undeclared Declaration = "undeclared"
	// InUse is that something on the node uses MPS, or is about to.
	InUse Declaration = "in use"
	// Idle is that nothing does. A plugin that declares it declares InUse before anything does again.
	Idle Declaration = "idle"
	// IdleUntilUndeclared is Idle, declared by plugins that cannot declare InUse. They let go of Idle
	// instead: those of earlier versions do, and those that cannot write to the directory.
	IdleUntilUndeclared Declaration = "idle until undeclared"
)

// declarationBytes are the bytes of the file that are locked while a Declaration is declared.
var declarationBytes = map[Declaration]int64{InUse: 0, Idle: 1}

// Declare is for the plugin: it declares the node InUse or Idle until withdraw is called or the
// process ends. Several processes may, and InUse counts more than Idle. To change a declaration,
// make the new one before you withdraw the old one.
//
// Where no plugin has declared the node Idle since its boot, InUse is nothing new: withdraw is nil.
//
// Declarations are locks: a killed process leaves none behind, and InUse needs no space.
func (d Dir) Declare(what Declaration) (withdraw func() error, err error) {
	if what == InUse {
		f, err := declareIn(d.declarationFile(), InUse, os.O_RDONLY)
		if errors.Is(err, fs.ErrNotExist) {
			return nil, nil
		}
		if err != nil {
			return nil, fmt.Errorf("declare that MPS is in use: %w", err)
		}
		return f.Close, nil
	}
	f, fileErr := declareIn(d.declarationFile(), Idle, os.O_RDONLY|os.O_CREATE)
	dir, err := os.Open(string(d))
	if err == nil {
		err = flock(dir, unix.LOCK_SH, lockTimeout)
	}
	switch {
	case err != nil:
		_, _ = dir.Close(), f.Close()
		return nil, fmt.Errorf("declare that nothing uses MPS: %w", err)
	case fileErr != nil:
		return dir.Close, nil
	}
	return func() error { return errors.Join(dir.Close(), f.Close()) }, nil
}

// declareIn opens the file, and locks its byte for the Declaration until it is closed.
func declareIn(path string, what Declaration, flags int) (*os.File, error) {
	f, err := os.OpenFile(path, flags, 0o644)
	if err != nil {
		return nil, err
	}
	lock := unix.Flock_t{Type: unix.F_RDLCK, Whence: int16(io.SeekStart), Start: declarationBytes[what], Len: 1}
	if err := unix.FcntlFlock(f.Fd(), unix.F_OFD_SETLK, &lock); err != nil {
		return nil, errors.Join(fmt.Errorf("lock %s: %w", path, err), f.Close())
	}
	return f, nil
}

// Declared is for the supervisor: it is what plugins declare at this moment, and Undeclared with an
// error.
func (d Dir) Declared() (Declaration, error) {
	// In this order: InUse is declared before Idle is withdrawn.
	idle, err := d.locked()
	if err != nil {
		return Undeclared, fmt.Errorf("look whether anything uses MPS: %w", err)
	}
	declared, err := d.lockedBytes()
	switch {
	case err != nil:
		return Undeclared, fmt.Errorf("look whether anything uses MPS: %w", err)
	case declared[InUse]:
		return InUse, nil
	case !idle:
		return Undeclared, nil
	case declared[Idle]:
		return Idle, nil
	}
	return IdleUntilUndeclared, nil
}

// locked reports whether a plugin has locked the directory.
func (d Dir) locked() (bool, error) {
	f, err := os.Open(string(d))
	if err != nil {
		return false, err
	}
	defer f.Close()
	err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) {
		return true, nil
	}
	if err != nil {
		return false, fmt.Errorf("lock %s: %w", d, err)
	}
	return false, nil
}

// lockedBytes says which bytes of the file plugins have locked.
func (d Dir) lockedBytes() (map[Declaration]bool, error) {
	f, err := os.Open(d.declarationFile())
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	declared := map[Declaration]bool{}
	for what, offset := range declarationBytes {
		lock := unix.Flock_t{Type: unix.F_WRLCK, Whence: int16(io.SeekStart), Start: offset, Len: 1}
		if err := unix.FcntlFlock(f.Fd(), unix.F_OFD_GETLK, &lock); err != nil {
			return nil, fmt.Errorf("look who has locked %s: %w", f.Name(), err)
		}
		declared[what] = lock.Type != unix.F_UNLCK
	}
	return declared, nil
}

// AwaitIdleEnd returns when no plugin declares the node Idle any more, or when that cannot be awaited. Nothing
// interrupts it: it keeps a thread meanwhile, and wakes nobody.
func (d Dir) AwaitIdleEnd() error {
	f, err := os.Open(string(d))
	if err != nil {
		return fmt.Errorf("wait until anything uses MPS: %w", err)
	}
	for err = unix.EINTR; errors.Is(err, unix.EINTR); {
		err = unix.Flock(int(f.Fd()), unix.LOCK_EX)
	}
	if err != nil {
		err = fmt.Errorf("wait until anything uses MPS: lock %s: %w", d, err)
	}
	return errors.Join(err, f.Close())
}

func (d Dir) declarationFile() string { return filepath.Join(string(d), "declarations.lock") }

// flock locks an open file, and tries again until the timeout while another holds it.
func flock(f *os.File, how int, timeout time.Duration) error {
	for start := time.Now(); ; time.Sleep(10 * time.Millisecond) {
		err := unix.Flock(int(f.Fd()), how|unix.LOCK_NB)
		if err == nil {
			return nil
		}
		if !errors.Is(err, unix.EWOULDBLOCK) || time.Since(start) >= timeout {
			return fmt.Errorf("lock %s: %w", f.Name(), err)
		}
	}
}
