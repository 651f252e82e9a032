// SPDX-License-Identifier: Apache-2.0

package mps

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// Declaration is what the plugins declare of MPS on their node.
type Declaration string

const (
	// Undeclared is that no plugin declares anything: none runs, it does not know yet, or it cannot.
	Undeclared Declaration = "undeclared"
	// InUse is that something on the node uses MPS, or is about to.
	InUse Declaration = "in-use"
	// Idle is that nothing does. A plugin that declares it declares InUse before anything does again.
	Idle Declaration = "idle"
)

// Declare is for the plugin: it declares the node InUse or Idle until withdraw is called or the
// process ends. Several processes may, and InUse counts more than Idle. To change a declaration,
// make the new one before you withdraw the old one.
//
// Where no plugin has declared the node Idle since its boot, InUse is nothing new: withdraw is nil.
//
// Declarations are locks: a killed process leaves none behind, and InUse needs no space.
func (d Dir) Declare(what Declaration) (withdraw func() error, err error) {
	flags := os.O_RDONLY
	if what == Idle {
		flags |= os.O_CREATE
		inUse, err := os.OpenFile(d.declarationFile(InUse), flags, 0o644)
		if err != nil {
			return nil, fmt.Errorf("make room to declare that MPS is in use: %w", err)
		}
		defer inUse.Close()
	}
	f, err := lock(d.declarationFile(what), flags, unix.LOCK_SH, lockTimeout)
	switch {
	case what == InUse && errors.Is(err, fs.ErrNotExist):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("declare MPS %s: %w", what, err)
	}
	return f.Close, nil
}

// Declared is for the supervisor: it is what plugins declare at this moment, and Undeclared with an
// error.
func (d Dir) Declared() (Declaration, error) {
	_, err := os.Stat(string(d))
	// In this order: InUse is declared before Idle is withdrawn.
	idle, idleErr := locked(d.declarationFile(Idle), unix.LOCK_EX)
	used, usedErr := locked(d.declarationFile(InUse), unix.LOCK_EX)
	switch err := errors.Join(err, idleErr, usedErr); {
	case err != nil:
		return Undeclared, fmt.Errorf("look whether anything uses MPS: %w", err)
	case used:
		return InUse, nil
	case idle:
		return Idle, nil
	}
	return Undeclared, nil
}

// AwaitIdleEnd returns when no plugin declares the node Idle any more, or when that cannot be awaited. Nothing
// interrupts it: it keeps a thread meanwhile, and wakes nobody.
func (d Dir) AwaitIdleEnd() error {
	f, err := os.Open(d.declarationFile(Idle))
	if err != nil {
		return fmt.Errorf("wait until anything uses MPS: %w", err)
	}
	for err = unix.EINTR; errors.Is(err, unix.EINTR); {
		err = unix.Flock(int(f.Fd()), unix.LOCK_EX)
	}
	if err != nil {
		err = fmt.Errorf("wait until anything uses MPS: lock %s: %w", f.Name(), err)
	}
	return errors.Join(err, f.Close())
}

func (d Dir) declarationFile(of Declaration) string {
	return filepath.Join(string(d), string(of)+".lock")
}
