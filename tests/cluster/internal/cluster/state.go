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
	"reflect"
	"slices"
	"strings"

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
	// HandedDown are the controllers that roots of control groups of version 2 handed down before, by file.
	HandedDown map[string][]string `json:"handedDown,omitempty"`
	// Components are the directories of the programs, by component.
	Components map[string]string `json:"components"`
	// Mounts are directories of the machine that nodes have besides hostDirs.
	Mounts []string `json:"mounts,omitempty"`
	// Gates are what of Kubernetes is enabled besides what is by default.
	Gates []string `json:"gates,omitempty"`
	// Control is the first process of the control plane.
	Control proc.Process `json:"control"`
	// Store is the first process of the image store, which runs while images are loaded into it.
	Store proc.Process `json:"store"`
	Nodes []*nodeState `json:"nodes"`
}

type nodeState struct {
	Node
	// Number is the node's place in the network, from 1.
	Number int `json:"number"`
	// GPUs is a digest of the machine file the node's GPUs were made from;
	// empty where it has none.
	GPUs string `json:"cards,omitempty"`
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

const stateFile = "state.json"

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

// refresh has s say what is on disk, where commands on other nodes may have written since. A
// node stays at the address it has in s.
func (c *Cluster) refresh(s *state) error {
	return c.holdingState(func() error { return c.reload(s) })
}

func (c *Cluster) reload(s *state) error {
	now, err := c.load()
	if now == nil || err != nil {
		return err
	}
	nodes := make([]*nodeState, 0, len(now.Nodes))
	for _, node := range now.Nodes {
		if own := s.node(node.Name); own != nil {
			// Who works on the node may be reading it; then nobody else has changed it.
			if !reflect.DeepEqual(own, node) {
				*own = *node
			}
			node = own
		}
		nodes = append(nodes, node)
	}
	if !slices.Equal(nodes, s.Nodes) {
		s.Nodes = nodes
	}
	if s.Store != now.Store {
		s.Store = now.Store
	}
	return nil
}

// update changes the state and writes it, whole or not at all. Several nodes may
// do so at a time, of one command and of several.
func (c *Cluster) update(s *state, change func()) error {
	return c.holdingState(func() error {
		if err := c.reload(s); err != nil {
			return err
		}
		change()
		return c.save(s)
	})
}

func (c *Cluster) save(s *state) error {
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
