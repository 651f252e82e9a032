// SPDX-License-Identifier: Apache-2.0

package mps

import (
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// SayUnneeded is for the plugin: it tells the supervisor, until takeBack is called or
// the process ends, that nothing on the node uses MPS. Several processes may say so;
// daemons run where none does.
//
// It is said by a lock on the directory itself: it needs no file, which the plugin could
// not write, and it is not left behind by a process that is killed.
func (d Dir) SayUnneeded() (takeBack func() error, err error) {
	f, err := os.Open(string(d))
	if err != nil {
		return nil, fmt.Errorf("tell gpu-mps-supervisor that nothing uses MPS: %w", err)
	}
	if err := flock(f, unix.LOCK_SH, lookersPatience); err != nil {
		return nil, errors.Join(fmt.Errorf("tell gpu-mps-supervisor that nothing uses MPS: %w", err), f.Close())
	}
	return f.Close, nil
}

// Needed is for the supervisor: it reports whether anything on the node may use MPS,
// which is so unless a plugin says that it is not.
func (d Dir) Needed() (bool, error) {
	f, err := os.Open(string(d))
	if err != nil {
		return true, fmt.Errorf("look whether anything uses MPS: %w", err)
	}
	defer f.Close()
	err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) {
		return false, nil
	}
	if err != nil {
		return true, fmt.Errorf("look whether anything uses MPS: lock %s: %w", d, err)
	}
	return true, nil
}

// AwaitNeeded returns when something on the node may use MPS, as Needed has it, or when that cannot be awaited.
// Nothing breaks it off: it keeps a thread meanwhile, and wakes nobody.
func (d Dir) AwaitNeeded() error {
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

// flock locks an open file as told, and tries again for as long as patience where
// another holds it.
func flock(f *os.File, how int, patience time.Duration) error {
	for start := time.Now(); ; time.Sleep(10 * time.Millisecond) {
		err := unix.Flock(int(f.Fd()), how|unix.LOCK_NB)
		if err == nil {
			return nil
		}
		if !errors.Is(err, unix.EWOULDBLOCK) || time.Since(start) >= patience {
			return fmt.Errorf("lock %s: %w", f.Name(), err)
		}
	}
}
