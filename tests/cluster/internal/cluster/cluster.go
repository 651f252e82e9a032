// SPDX-License-Identifier: Apache-2.0

// Package cluster runs a real Kubernetes on one machine: etcd, the control plane
// and any number of nodes, each a kubelet and a containerd that see a machine of
// their own. Everything of one cluster is in one directory, and taking it down
// leaves nothing of it on the machine.
//
// It is for Linux and needs root.
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
	"time"

	"github.com/gpushare/dra-driver-gpushare/tests/cluster/internal/build"
)

// ModeLabel is the label that says how a node's GPUs are shared.
const ModeLabel = "ack.node.gpu.schedule"

// readyTimeout is how long the control plane or a node may take to be ready. It
// takes seconds; the rest is for a machine that is busy with other things.
const readyTimeout = 3 * time.Minute

// Cluster is one cluster, up or not. Its methods may be called by several
// processes; those that change all of it, or the same node, take turns.
type Cluster struct {
	// Dir is the absolute path of the directory that holds all of it.
	Dir string
	// Checkout is the root of the repository.
	Checkout string
	// Builder makes the programs.
	Builder *build.Builder
	// Progress is told what is being done, a line at a time.
	Progress func(format string, args ...any)

	changing sync.Mutex
}

// ErrNone says that there is no cluster in the directory.
var ErrNone = errors.New("no cluster is up")

// StepError is a failed step together with the log that tells most about it.
type StepError struct {
	Step string
	Log  string
	Err  error
}

func (e *StepError) Error() string { return e.Step + ": " + e.Err.Error() }

func (e *StepError) Unwrap() error { return e.Err }

// LogPath is where to read what went wrong.
func (e *StepError) LogPath() string { return e.Log }

// Kubeconfig is the file that lets kubectl in as the cluster's administrator.
func (c *Cluster) Kubeconfig() string { return filepath.Join(c.Dir, "kubeconfig") }

// Program is the path of a program of a component, as it lies in the cache.
func (c *Cluster) Program(component, name string) (string, error) {
	s, err := c.existing()
	if err != nil {
		return "", err
	}
	return filepath.Join(s.Components[component], name), nil
}

func (c *Cluster) path(elements ...string) string {
	return filepath.Join(append([]string{c.Dir}, elements...)...)
}

func (c *Cluster) log(name string) string { return c.path("logs", name+".log") }

// existing is the state of a cluster that has to be there.
func (c *Cluster) existing() (*state, error) {
	s, err := c.load()
	if err != nil {
		return nil, err
	}
	if s == nil {
		return nil, fmt.Errorf("%w in %s: start one with `up` or `make cluster`, or name another directory with --dir",
			ErrNone, c.Dir)
	}
	return s, nil
}

// change runs f on the state of a cluster that has to be there, while no other
// command can change all of it. f has to take the locks of the nodes it changes.
func (c *Cluster) change(ctx context.Context, f func(context.Context, *state) error) error {
	unlock, err := c.amongOthers()
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err == nil {
		defer unlock()
	}
	s, err := c.existing()
	if err != nil {
		return err
	}
	return f(ctx, s)
}

// writeFiles writes files by path, making directories as needed.
func writeFiles(files map[string]string) error {
	for path, content := range files {
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return fmt.Errorf("write %s: %w", path, err)
		}
		if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
			return fmt.Errorf("write %s: %w", path, err)
		}
	}
	return nil
}

// lines joins lines into the content of a file.
func lines(all ...string) string { return strings.Join(all, "\n") + "\n" }
