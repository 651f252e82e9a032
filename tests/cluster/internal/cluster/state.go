// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/gpushare/dra-driver-gpushare/tests/cluster/internal/proc"
)

// state is what has to be undone to take the cluster down. It is on disk before
// what it speaks of is done, so `down` after any kill knows of all there is.
type state struct {
	// ID is random; it is part of every name the cluster takes on the machine.
	ID string `json:"id"`
	// Boot is the boot of the machine the rest holds for.
	Boot    string  `json:"boot"`
	Network Network `json:"network"`
	// Components are the directories of the programs, by component.
	Components map[string]string `json:"components"`
	// Mounts are directories of the machine that nodes have besides hostDirs.
	Mounts []string `json:"mounts,omitempty"`
	// Gates are what of Kubernetes is enabled besides what is by default.
	Gates []string `json:"gates,omitempty"`
	// Control is the first process of the control plane.
	Control proc.Process `json:"control"`
	Nodes   []*nodeState `json:"nodes"`
}

type nodeState struct {
	Node
	// Number is the node's place in the network, from 1.
	Number int `json:"number"`
	// Cards is a digest of the machine file the node's cards were made from;
	// empty where it has none.
	Cards string `json:"cards,omitempty"`
	// Made says that the node was made to the end. One that was not is of no
	// use, whether it runs or not.
	Made bool `json:"made"`
	// Init is the node's first process; its death is the node's.
	Init proc.Process `json:"init"`
	// Images are the digests of the archives loaded, by file name.
	Images map[string]string `json:"images"`
}

func (s *state) node(name string) *nodeState {
	for _, node := range s.Nodes {
		if node.Name == name {
			return node
		}
	}
	return nil
}

// freeNumber is the lowest node number not taken.
func (s *state) freeNumber() int {
	taken := map[int]bool{}
	for _, node := range s.Nodes {
		taken[node.Number] = true
	}
	number := 1
	for taken[number] {
		number++
	}
	return number
}

func (s *state) cgroup(node *nodeState) string {
	return "gpushare-" + s.ID + "-" + node.Name
}

func newState() (*state, error) {
	id := make([]byte, 4)
	if _, err := rand.Read(id); err != nil {
		return nil, fmt.Errorf("draw a name for the cluster: %w", err)
	}
	boot, err := bootID()
	if err != nil {
		return nil, err
	}
	return &state{ID: hex.EncodeToString(id), Boot: boot}, nil
}

func bootID() (string, error) {
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "", fmt.Errorf("read the machine's boot id: %w", err)
	}
	return strings.TrimSpace(string(boot)), nil
}

const (
	stateFile = "state.json"
	lockFile  = "lock"
)

// load reads the state; nil where there is no cluster.
func (c *Cluster) load() (*state, error) {
	path := filepath.Join(c.Dir, stateFile)
	content, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read the cluster's state: %w", err)
	}
	var s state
	if err := json.Unmarshal(content, &s); err != nil {
		return nil, fmt.Errorf("read the cluster's state %s: %w", path, err)
	}
	return &s, nil
}

// update changes the state and writes it, whole or not at all. Several nodes may
// do so at a time.
func (c *Cluster) update(s *state, change func()) error {
	c.changing.Lock()
	defer c.changing.Unlock()
	change()
	content, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		return fmt.Errorf("encode the cluster's state: %w", err)
	}
	path := filepath.Join(c.Dir, stateFile)
	if err := os.WriteFile(path+".new", content, 0o600); err != nil {
		return fmt.Errorf("write the cluster's state: %w", err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		return fmt.Errorf("write the cluster's state: %w", err)
	}
	return nil
}

// lock keeps other commands from changing the same cluster at the same time. With
// create it makes the cluster's directory; without, it is an error of type
// fs.ErrNotExist when there is none.
func (c *Cluster) lock(create bool) (unlock func(), err error) {
	for {
		if create {
			if err := c.claimDir(); err != nil {
				return nil, err
			}
		} else if _, err := os.Stat(c.Dir); err != nil {
			return nil, err
		}
		file, err := os.OpenFile(filepath.Join(c.Dir, lockFile), os.O_CREATE|os.O_RDWR, 0o644)
		if err != nil {
			return nil, fmt.Errorf("lock the cluster: %w", err)
		}
		err = unix.Flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if errors.Is(err, unix.EWOULDBLOCK) {
			c.Progress("waiting for another command on %s", c.Dir)
			err = unix.Flock(int(file.Fd()), unix.LOCK_EX)
		}
		if err != nil {
			return nil, errors.Join(fmt.Errorf("lock %s: %w", file.Name(), err), file.Close())
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
