// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/unix"
)

// Three kinds of locks keep commands from each other, always taken in this order:
//
//   - that of the cluster, lockFile: held alone by commands that change all of it, as `up` and
//     `down`, and shared by those that change single nodes;
//   - one of each node: held by a command until it has done what it does to the node, so until
//     the node is Ready. Commands on different nodes go on beside each other;
//   - that of the state, which is on the cluster's directory itself: held for as long as the
//     state is read, changed and written.
const lockFile = "lock"

// alone is the lock on the cluster for a command that changes all of it. With create it
// makes the cluster's directory; without, it is an error of type fs.ErrNotExist when there is
// none.
func (c *Cluster) alone(create bool) (unlock func(), err error) {
	if create {
		return c.lock(unix.LOCK_EX, c.claimDir)
	}
	return c.lock(unix.LOCK_EX, c.isThere)
}

// amongOthers is the lock on the cluster for a command that changes nodes whose locks it
// holds. It is an error of type fs.ErrNotExist when there is no cluster.
func (c *Cluster) amongOthers() (unlock func(), err error) {
	return c.lock(unix.LOCK_SH, c.isThere)
}

func (c *Cluster) isThere() error {
	_, err := os.Stat(c.Dir)
	return err
}

func (c *Cluster) lock(how int, prepare func() error) (unlock func(), err error) {
	for {
		if err := prepare(); err != nil {
			return nil, err
		}
		file, err := c.flock(filepath.Join(c.Dir, lockFile), how, c.Dir)
		if err != nil {
			return nil, err
		}
		if sameFile(file) {
			return func() { _ = file.Close() }, nil
		}
		// The command waited for was `down`: it took the file away.
		if err := file.Close(); err != nil {
			return nil, err
		}
	}
}

// shared names the lock on what all new nodes are made of, which is taken like that of a node.
const shared = ".shared"

// lockNode keeps other commands from a node, which need not be there. The lock on the cluster
// has to be held.
func (c *Cluster) lockNode(name string) (unlock func(), err error) {
	if err := os.MkdirAll(c.path("locks"), 0o755); err != nil {
		return nil, fmt.Errorf("lock node %s: %w", name, err)
	}
	file, err := c.flock(c.path("locks", name), unix.LOCK_EX, "node "+name)
	if err != nil {
		return nil, err
	}
	return func() { _ = file.Close() }, nil
}

// holdingState runs f while nobody else reads or changes the state on disk.
func (c *Cluster) holdingState(f func() error) error {
	c.changing.Lock()
	defer c.changing.Unlock()
	dir, err := os.Open(c.Dir)
	if err != nil {
		return fmt.Errorf("lock the cluster's state: %w", err)
	}
	defer dir.Close()
	if err := unix.Flock(int(dir.Fd()), unix.LOCK_EX); err != nil {
		return fmt.Errorf("lock the cluster's state in %s: %w", c.Dir, err)
	}
	return f()
}

// flock opens a file and locks it. Closing it gives the lock back.
func (c *Cluster) flock(path string, how int, what string) (*os.File, error) {
	file, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, fmt.Errorf("lock %s: %w", what, err)
	}
	err = unix.Flock(int(file.Fd()), how|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) {
		c.Progress("waiting for another command on %s", what)
		err = unix.Flock(int(file.Fd()), how)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("lock %s: %w", path, err), file.Close())
	}
	return file, nil
}

func sameFile(file *os.File) bool {
	held, err := file.Stat()
	if err != nil {
		return false
	}
	there, err := os.Stat(file.Name())
	if err != nil {
		return false
	}
	a, okA := held.Sys().(*syscall.Stat_t)
	b, okB := there.Sys().(*syscall.Stat_t)
	return okA && okB && a.Dev == b.Dev && a.Ino == b.Ino
}

// claimDir makes the directory, and refuses one that holds anything that is not a
// cluster's: `down` removes all of it.
func (c *Cluster) claimDir() error {
	if err := os.MkdirAll(c.Dir, 0o755); err != nil {
		return fmt.Errorf("make the cluster's directory: %w", err)
	}
	entries, err := os.ReadDir(c.Dir)
	if err != nil {
		return fmt.Errorf("look into the cluster's directory: %w", err)
	}
	foreign := ""
	for _, entry := range entries {
		switch entry.Name() {
		case stateFile:
			return nil
		case lockFile:
		default:
			foreign = entry.Name()
		}
	}
	if foreign != "" {
		return fmt.Errorf("%s holds %s and no cluster: name an empty directory, for all of it is removed when the cluster "+
			"goes down", c.Dir, foreign)
	}
	return nil
}
