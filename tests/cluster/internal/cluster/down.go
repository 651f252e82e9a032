// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
)

// Down takes the cluster down and removes every trace of it from the machine, also
// of one that works only in part. It is no error where there is none.
func (c *Cluster) Down(ctx context.Context) error {
	if err := checkRoot(); err != nil {
		return err
	}
	unlock, err := c.alone(false)
	if errors.Is(err, fs.ErrNotExist) {
		c.Progress("%v in %s", ErrNone, c.Dir)
		return nil
	}
	if err != nil {
		return err
	}
	defer unlock()
	s, err := c.load()
	if err != nil {
		return err
	}
	if s == nil {
		c.Progress("%v in %s", ErrNone, c.Dir)
	} else if err := c.clear(ctx, s); err != nil {
		return err
	}
	if err := os.Remove(c.path(lockFile)); err != nil {
		return fmt.Errorf("remove the cluster's directory: %w", err)
	}
	// Without a cluster, what else lies there is not this program's.
	if err := os.Remove(c.Dir); err != nil && s != nil {
		return fmt.Errorf("remove the cluster's directory: %w", err)
	}
	return nil
}

// clear takes down all that s speaks of and empties the directory, but for the lock.
// The state goes last: when anything fails, another try knows all there is.
func (c *Cluster) clear(ctx context.Context, s *state) error {
	boot, err := bootID()
	if err != nil {
		return err
	}
	// After a new start of the machine nothing but files is left, and another
	// cluster may have the addresses.
	if s.Boot == boot {
		if err := c.stop(ctx, s); err != nil {
			return err
		}
	}
	entries, err := os.ReadDir(c.Dir)
	if err != nil {
		return fmt.Errorf("empty the cluster's directory: %w", err)
	}
	for _, entry := range entries {
		if entry.Name() == lockFile || entry.Name() == stateFile {
			continue
		}
		if err := removeAll(c.path(entry.Name())); err != nil {
			return err
		}
	}
	if err := os.Remove(c.path(stateFile)); err != nil {
		return fmt.Errorf("empty the cluster's directory: %w", err)
	}
	return nil
}

func (c *Cluster) stop(ctx context.Context, s *state) error {
	var group sync.WaitGroup
	errs := make([]error, len(s.Nodes)+1)
	group.Go(func() { errs[len(s.Nodes)] = errors.Join(s.Control.Kill(ctx), s.Store.Kill(ctx)) })
	for i, node := range s.Nodes {
		group.Go(func() {
			errs[i] = errors.Join(node.Init.Kill(ctx), removeCgroup(ctx, s.cgroup(node)),
				removeAddress(s.Network.node(node.Number)))
		})
	}
	group.Wait()
	if err := errors.Join(errs...); err != nil {
		return err
	}
	return c.giveMachineBack(s)
}

// removeAll removes a directory, but not where something is mounted below it: that
// is not this program's, and what it holds must not be removed through it.
func removeAll(path string) error {
	mounts, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		return fmt.Errorf("look for mounts below %s: %w", path, err)
	}
	for line := range strings.Lines(string(mounts)) {
		fields := strings.Fields(line)
		if len(fields) < 2 {
			continue
		}
		if relative, err := filepath.Rel(path, fields[1]); err == nil && filepath.IsLocal(relative) {
			return fmt.Errorf("remove %s: something is mounted on %s; unmount it first", path, fields[1])
		}
	}
	if err := os.RemoveAll(path); err != nil {
		return fmt.Errorf("remove %s: %w", path, err)
	}
	return nil
}
