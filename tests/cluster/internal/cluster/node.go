// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/gpushare/dra-driver-gpushare/tests/cluster/internal/proc"
	"github.com/gpushare/dra-driver-gpushare/tests/cluster/internal/sandbox"
)

// AddNode adds a node to a cluster that is up, and returns when it is Ready. Unlike
// Up it leaves the other nodes as they are, also those that somebody has killed.
func (c *Cluster) AddNode(ctx context.Context, node Node, images []string) error {
	if err := checkRoot(); err != nil {
		return err
	}
	wanted, err := c.resolve([]Node{node}, true)
	if err != nil {
		return err
	}
	return c.change(ctx, func(ctx context.Context, s *state) error {
		unlock, err := c.lockNode(node.Name)
		if err != nil {
			return err
		}
		defer unlock()
		if err := c.refresh(s); err != nil {
			return err
		}
		if s.node(node.Name) != nil {
			return fmt.Errorf("add node %s: the cluster in %s has one of that name", node.Name, c.Dir)
		}
		api, err := newClient(c.path("pki"), s.Network)
		if err != nil {
			return err
		}
		if err := c.addNodes(ctx, s, wanted, images, newLaps()); err != nil {
			return err
		}
		return c.waitNode(ctx, s, api, s.node(node.Name), time.Time{})
	})
}

// RemoveNode takes a node from the cluster, as one that is scaled in: what runs on it
// ends, its Node object is deleted, and nothing is left of it.
func (c *Cluster) RemoveNode(ctx context.Context, name string) error {
	return c.changeNode(ctx, name, func(ctx context.Context, s *state, node *nodeState) error {
		api, err := newClient(c.path("pki"), s.Network)
		if err != nil {
			return err
		}
		return c.removeNode(ctx, s, api, node)
	})
}

// KillNode ends everything that runs on a node at once, as a loss of power does.
func (c *Cluster) KillNode(ctx context.Context, name string) error {
	return c.changeNode(ctx, name, func(ctx context.Context, _ *state, node *nodeState) error {
		return node.Init.Kill(ctx)
	})
}

// StartNode starts a killed node as a machine starts: its disk is as it was, and
// /run is empty but for the NVIDIA driver, which stands for the hardware. It
// returns when the node is Ready.
func (c *Cluster) StartNode(ctx context.Context, name string) error {
	return c.changeNode(ctx, name, func(ctx context.Context, s *state, node *nodeState) error {
		if !node.Made {
			return fmt.Errorf("node %s was never finished: `up` makes it again", name)
		}
		if node.Init.Alive() {
			c.Progress("node %s runs already", name)
			return nil
		}
		api, err := newClient(c.path("pki"), s.Network)
		if err != nil {
			return err
		}
		// Pods' groups are gone after a loss of power.
		if err := removeCgroup(ctx, s.cgroup(node)); err != nil {
			return err
		}
		if err := emptyRun(filepath.Join(c.nodeRoot(name), "run")); err != nil {
			return fmt.Errorf("empty /run of node %s: %w", name, err)
		}
		// What a driver was told is forgotten when it is reloaded.
		if err := emptyDir(filepath.Join(c.nodeRoot(name), driverState)); err != nil {
			return fmt.Errorf("forget what the NVIDIA driver of node %s was told: %w", name, err)
		}
		since := time.Now()
		if err := c.startNode(ctx, s, node); err != nil {
			return err
		}
		return c.waitNode(ctx, s, api, node, since)
	})
}

// RestartKubelet kills a node's kubelet with SIGKILL, and returns when the one that
// is started in its place has reported the node Ready.
func (c *Cluster) RestartKubelet(ctx context.Context, name string) error {
	return c.changeNode(ctx, name, func(ctx context.Context, s *state, node *nodeState) error {
		kubelet, running := node.Init.Child("kubelet")
		if !running {
			return &StepError{Step: "restart kubelet of node " + name, Log: c.log(name + "-kubelet"),
				Err: errors.New("it does not run")}
		}
		api, err := newClient(c.path("pki"), s.Network)
		if err != nil {
			return err
		}
		since := time.Now()
		if err := kubelet.Kill(ctx); err != nil {
			return err
		}
		return c.waitNode(ctx, s, api, node, since)
	})
}

func (c *Cluster) changeNode(ctx context.Context, name string,
	f func(context.Context, *state, *nodeState) error) error {
	if err := checkRoot(); err != nil {
		return err
	}
	return c.change(ctx, func(ctx context.Context, s *state) error {
		return c.onNode(s, name, func(node *nodeState) error { return f(ctx, s, node) })
	})
}

var errNoNode = errors.New("there is no node")

// onNode runs f on a node of the cluster while no other command can change the node.
func (c *Cluster) onNode(s *state, name string, f func(*nodeState) error) error {
	missing := func() error {
		if s.node(name) != nil {
			return nil
		}
		return fmt.Errorf("%w %q in %s: it has %s", errNoNode, name, c.Dir, strings.Join(s.nodeNames(), ", "))
	}
	if err := missing(); err != nil {
		return err
	}
	unlock, err := c.lockNode(name)
	if err != nil {
		return err
	}
	defer unlock()
	// The command waited for may have started the node again, or removed it.
	if err := errors.Join(c.refresh(s), missing()); err != nil {
		return err
	}
	return f(s.node(name))
}

func (s *state) nodeNames() []string {
	var names []string
	for _, node := range s.Nodes {
		names = append(names, node.Name)
	}
	return names
}

// emptyDir removes what is in a directory, if it is there.
func emptyDir(dir string) error {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	for _, entry := range entries {
		err = errors.Join(err, os.RemoveAll(filepath.Join(dir, entry.Name())))
	}
	return err
}

// emptyRun removes what was in /run of a node that runs no more.
func emptyRun(run string) error {
	entries, err := os.ReadDir(run)
	if err != nil {
		return err
	}
	for _, entry := range entries {
		if entry.Name() == "nvidia" {
			continue
		}
		if err := os.RemoveAll(filepath.Join(run, entry.Name())); err != nil {
			return err
		}
	}
	// As a real machine's tmpfiles do.
	return errors.Join(os.Mkdir(filepath.Join(run, "cdi"), 0o755), os.Mkdir(filepath.Join(run, "lock"), 0o755))
}

// makeNode makes a node from nothing and starts it.
func (c *Cluster) makeNode(ctx context.Context, s *state, node *nodeState, machine string) error {
	if err := c.makeNodeRoot(s, node); err != nil {
		return err
	}
	if err := c.copyImageStore(node); err != nil {
		return err
	}
	if machine != "" {
		if err := c.simulate(ctx, node, machine); err != nil {
			return err
		}
	}
	if err := c.startNode(ctx, s, node); err != nil {
		return err
	}
	return c.update(s, func() { node.Made = true })
}

// simulate lays the NVIDIA driver of a simulated machine into the node.
func (c *Cluster) simulate(ctx context.Context, node *nodeState, machine string) error {
	root := c.driverRoot(node.Name)
	if err := os.MkdirAll(root, 0o755); err != nil {
		return fmt.Errorf("simulate the GPUs of node %s: %w", node.Name, err)
	}
	cmd := exec.CommandContext(ctx, c.path("bin", "simnode"),
		"--machine", machine, "--root", root, "--node", node.Name,
		"--nvml", c.path("bin", nvmlLibrary), "--mps-control", c.path("bin", "mpsstandin"),
		"--smi", c.path("bin", "mpsstandin"))
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("simulate the GPUs of node %s from %s: %w: %s", node.Name, machine, err, bytes.TrimSpace(out))
	}
	return nil
}

func (c *Cluster) driverRoot(name string) string { return filepath.Join(c.nodeRoot(name), driverRoot) }

// Where a node with simulated GPUs has its driver, and what the driver keeps.
const (
	driverRoot  = "/run/nvidia/driver"
	driverState = driverRoot + "/state"
	// driverCgroups stands in for the root of the control groups of version 2, with files of a
	// controller that this machine's kernel may lack.
	driverCgroups = driverRoot + "/cgroup"
)

// Fault breaks, or heals, a GPU of a node that runs, as `simnode fault` does.
func (c *Cluster) Fault(ctx context.Context, name string, fault ...string) error {
	root := c.driverRoot(name)
	if _, err := os.Stat(root); err != nil {
		return fmt.Errorf("break a GPU of node %s: it has none in %s: %w", name, c.Dir, err)
	}
	cmd := exec.CommandContext(ctx, c.path("bin", "simnode"), append([]string{"fault", "--root", root}, fault...)...)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("break a GPU of node %s: %w: %s", name, err, bytes.TrimSpace(out))
	}
	return nil
}

// startNode starts what runs on a node. containerd serves when it returns; kubelet
// may not have reported yet.
func (c *Cluster) startNode(ctx context.Context, s *state, node *nodeState) error {
	if err := makeCgroup(s.cgroup(node)); err != nil {
		return err
	}
	if err := addAddress(s.Network.node(node.Number)); err != nil {
		return err
	}
	spec, err := c.nodeSandbox(s, node)
	if err != nil {
		return err
	}
	log := c.log(node.Name)
	err = sandbox.Start(ctx, spec, log, func(first proc.Process) error {
		return c.update(s, func() { node.Init = first })
	})
	if err != nil {
		return &StepError{Step: "start node " + node.Name, Log: log, Err: err}
	}
	if err := waitContainerd(ctx, node.Init); err != nil {
		return &StepError{Step: "wait for containerd of node " + node.Name, Log: c.log(node.Name + "-containerd"), Err: err}
	}
	return nil
}

// waitContainerd waits until the containerd of a sandbox serves.
func waitContainerd(ctx context.Context, first proc.Process) error {
	ctx, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()
	return waitFor(ctx, func() error {
		connection, err := net.Dial("unix", socketIn(first))
		if err != nil {
			return err
		}
		return connection.Close()
	})
}

// socketIn is the containerd socket of a sandbox as it is reached from outside. The
// way through the cluster's directory may be longer than a socket's path can be.
func socketIn(first proc.Process) string {
	return fmt.Sprintf("/proc/%d/root%s", first.PID, containerdSocket)
}

// removeNode removes a node and every trace of it. The API is not told where api
// is nil.
func (c *Cluster) removeNode(ctx context.Context, s *state, api *client, node *nodeState) error {
	if err := node.Init.Kill(ctx); err != nil {
		return err
	}
	if err := removeCgroup(ctx, s.cgroup(node)); err != nil {
		return err
	}
	if err := removeAddress(s.Network.node(node.Number)); err != nil {
		return err
	}
	if api != nil {
		if err := errors.Join(api.deletePods(ctx, node.Name), api.deleteNode(ctx, node.Name)); err != nil {
			return fmt.Errorf("remove node %s from the API: %w", node.Name, err)
		}
	}
	if err := removeAll(c.nodeRoot(node.Name)); err != nil {
		return err
	}
	return c.update(s, func() {
		s.Nodes = slices.DeleteFunc(slices.Clone(s.Nodes), func(other *nodeState) bool { return other == node })
	})
}
