// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// inotifyFile is the kernel's limit of inotify instances per user. A node takes 8
// and a control plane 5, of 128 by default for all of root: without more, the
// containerd or kubelet of the tenth node or so fails to start.
const inotifyFile = "/proc/sys/fs/inotify/max_user_instances"

// inotifyWanted is enough for a hundred nodes.
const inotifyWanted = 1024

// limits raises the machine's limit of inotify instances while any cluster is up.
// Its methods may be called only with the lock on shared decisions held.
type limits struct {
	file   string // the kernel's
	record string // where the value from before is kept
}

// raised is the record of what the limit was before the first cluster.
type raised struct {
	Boot   string `json:"boot"`
	Before int    `json:"before"`
}

func (l limits) raise(boot string) error {
	current, err := l.read()
	if err != nil || current >= inotifyWanted {
		return err
	}
	content, err := json.Marshal(raised{Boot: boot, Before: current})
	if err != nil {
		return fmt.Errorf("raise the limit of inotify instances: %w", err)
	}
	if err := os.WriteFile(l.record, content, 0o644); err != nil {
		return fmt.Errorf("raise the limit of inotify instances: %w", err)
	}
	return l.write(inotifyWanted)
}

// restore undoes raise, but not where somebody else has set the limit since.
func (l limits) restore(boot string) error {
	content, err := os.ReadFile(l.record)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("restore the limit of inotify instances: %w", err)
	}
	var before raised
	if err := json.Unmarshal(content, &before); err != nil {
		return fmt.Errorf("restore the limit of inotify instances from %s: %w", l.record, err)
	}
	current, err := l.read()
	if err != nil {
		return err
	}
	if before.Boot == boot && current == inotifyWanted {
		if err := l.write(before.Before); err != nil {
			return err
		}
	}
	if err := os.Remove(l.record); err != nil {
		return fmt.Errorf("restore the limit of inotify instances: %w", err)
	}
	return nil
}

func (l limits) read() (int, error) {
	content, err := os.ReadFile(l.file)
	if err != nil {
		return 0, fmt.Errorf("read the limit of inotify instances: %w", err)
	}
	value, err := strconv.Atoi(strings.TrimSpace(string(content)))
	if err != nil {
		return 0, fmt.Errorf("read the limit of inotify instances %s: %w", l.file, err)
	}
	return value, nil
}

func (l limits) write(value int) error {
	if err := os.WriteFile(l.file, []byte(strconv.Itoa(value)), 0o644); err != nil {
		return fmt.Errorf("set the limit of inotify instances to %d: %w", value, err)
	}
	return nil
}

// takeMachine takes what clusters on one machine share: addresses that are free,
// and the raised limit. It notes which controllers are handed down to control groups.
func (c *Cluster) takeMachine(s *state) error {
	return c.sharing(func(l limits) error {
		used, err := usedPrefixes()
		if err != nil {
			return err
		}
		network, err := chooseNetwork(used)
		if err != nil {
			return err
		}
		handed, err := handedDown()
		if err != nil {
			return err
		}
		if err := c.update(s, func() { s.Network, s.HandedDown = network, handed }); err != nil {
			return err
		}
		// The address says to others that this cluster is there.
		if err := addAddress(network.api()); err != nil {
			return err
		}
		return l.raise(s.Boot)
	})
}

// giveMachineBack undoes takeMachine; the last cluster restores the limit.
func (c *Cluster) giveMachineBack(s *state) error {
	return c.sharing(func(l limits) error {
		if err := errors.Join(handDownAsBefore(s.HandedDown), removeAddress(s.Network.api())); err != nil {
			return err
		}
		used, err := usedPrefixes()
		if err != nil {
			return err
		}
		for index := range maxNetworks() {
			if slices.Contains(used, netip.PrefixFrom(Network{Index: index}.api(), 32)) {
				return nil
			}
		}
		return l.restore(s.Boot)
	})
}

// sharing runs f while no other cluster takes or gives back what they share.
func (c *Cluster) sharing(f func(limits) error) error {
	file, err := os.OpenFile(filepath.Join(c.Builder.Cache, "machine.lock"), os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return fmt.Errorf("lock what clusters share: %w", err)
	}
	defer file.Close()
	if err := unix.Flock(int(file.Fd()), unix.LOCK_EX); err != nil {
		return fmt.Errorf("lock what clusters share: %w", err)
	}
	return f(limits{file: inotifyFile, record: filepath.Join(c.Builder.Cache, "inotify-before.json")})
}
