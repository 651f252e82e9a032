// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/gpushare/dra-driver-gpushare/tests/cluster/internal/build"
	"github.com/gpushare/dra-driver-gpushare/tests/cluster/internal/proc"
)

// wantedNode is a node as it is to be.
type wantedNode struct {
	Node
	file string // the machine file; empty for a node without GPUs
	gpus string // its digest
}

// Wanted is what Up makes of a cluster.
type Wanted struct {
	Nodes []Node
	// Simulate gives nodes that name a machine its GPUs.
	Simulate bool
	// Images are archives that every node has before its first pod.
	Images []string
	// Mounts are directories of the machine that nodes have besides those that all have.
	Mounts []string
	// Gates are what of Kubernetes is enabled besides what is by default: names of gates.
	Gates []string
	// Kubernetes is its version, such as 1.36; empty for build.Newest.
	Kubernetes string
}

// Up brings the cluster into being, or an existing one to having these nodes: it
// adds those that are missing or dead, removes those not named and makes those
// again whose GPUs are others. What is left of a cluster that no longer works it
// takes down first. When it returns without an error, every node is Ready and
// pods can be made.
func (c *Cluster) Up(ctx context.Context, w Wanted) error {
	if err := errors.Join(Obstacles()...); err != nil {
		return err
	}
	started := time.Now()
	wanted, err := c.resolve(w.Nodes, w.Simulate)
	if err != nil {
		return err
	}
	if err := checkGates(w.Gates, w.Kubernetes); err != nil {
		return err
	}
	needed, err := build.Components(w.Kubernetes)
	if err != nil {
		return err
	}
	components, err := c.Builder.Ensure(ctx, needed)
	if err != nil {
		return err
	}
	unlock, err := c.alone(true)
	if err != nil {
		return err
	}
	defer unlock()
	laps := newLaps()
	s, err := c.usable(ctx, components, w)
	if err != nil {
		return err
	}
	if s == nil {
		c.Progress("starting the control plane")
		if s, err = c.begin(ctx, components, w); err != nil {
			return err
		}
	}
	laps.end("control plane started")
	changed, err := c.reconcile(ctx, s, wanted, w.Images, laps)
	if err != nil {
		return err
	}
	if err := c.loadImages(ctx, s, s.Nodes, w.Images); err != nil {
		return err
	}
	if !changed {
		c.Progress("the cluster is up as asked for: %s", c.Kubeconfig())
		return nil
	}
	laps.end("images loaded")
	c.Progress("%s", laps)
	c.Progress("cluster ready in %.1f s: export KUBECONFIG=%s", time.Since(started).Seconds(), c.Kubeconfig())
	return nil
}

// laps are how long the parts of bringing a cluster up took.
type laps struct {
	last time.Time
	took []string
}

func newLaps() *laps { return &laps{last: time.Now()} }

// end ends a part; the next one begins.
func (l *laps) end(part string) {
	now := time.Now()
	l.took = append(l.took, fmt.Sprintf("%s %.1f s", part, now.Sub(l.last).Seconds()))
	l.last = now
}

func (l *laps) String() string { return strings.Join(l.took, ", ") }

// checkRoot says what is missing where the caller may not do what a cluster takes.
func checkRoot() error {
	if os.Geteuid() != 0 {
		return errors.New("a cluster's nodes need root on this machine, for namespaces, mounts and control groups: run " +
			"this as root, for example with sudo -E")
	}
	return nil
}

func (c *Cluster) resolve(nodes []Node, simulate bool) ([]wantedNode, error) {
	wanted := make([]wantedNode, 0, len(nodes))
	for _, node := range nodes {
		w := wantedNode{Node: node}
		if simulate && node.Machine != "" {
			w.file = machineFile(c.Checkout, node.Machine)
			content, err := os.ReadFile(w.file)
			if err != nil {
				return nil, fmt.Errorf("machine file of node %s: %w; machines are the file names in demo/machines without "+
					".yaml, or paths", node.Name, err)
			}
			sum := sha256.Sum256(content)
			w.gpus = hex.EncodeToString(sum[:])
		}
		wanted = append(wanted, w)
	}
	return wanted, nil
}

// usable gives the state of a cluster that can be gone on with, and nil where there
// is none any more.
func (c *Cluster) usable(ctx context.Context, components map[string]string, w Wanted) (*state, error) {
	s, err := c.load()
	if s == nil || err != nil {
		return nil, err
	}
	reason, err := c.defect(ctx, s, components, w)
	if reason == "" || err != nil {
		return s, err
	}
	c.Progress("taking down what is left of the cluster in %s: %s", c.Dir, reason)
	return nil, c.clear(ctx, s)
}

// defect says why the control plane cannot be gone on with; empty where it can.
func (c *Cluster) defect(ctx context.Context, s *state, components map[string]string, w Wanted) (string, error) {
	boot, err := bootID()
	if err != nil {
		return "", err
	}
	switch {
	case s.Boot != boot:
		return "the machine was started again since", nil
	case !s.Control.Alive():
		return "its control plane is not running", nil
	case !maps.Equal(s.Components, components):
		return "its programs have changed", nil
	case !slices.Equal(s.Mounts, w.Mounts):
		return "its nodes have other directories of the machine", nil
	case !slices.Equal(s.Gates, w.Gates):
		return "it has other gates", nil
	}
	api, err := newClient(c.path("pki"), s.Network)
	if err != nil {
		return err.Error(), nil
	}
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	if err := waitFor(ctx, func() error { return api.ready(ctx) }); err != nil {
		return fmt.Sprintf("its API server does not answer: %v", err), nil
	}
	return "", nil
}

// begin starts a cluster without nodes.
func (c *Cluster) begin(ctx context.Context, components map[string]string, w Wanted) (*state, error) {
	s, err := newState()
	if err != nil {
		return nil, err
	}
	s.Components, s.Mounts, s.Gates = components, w.Mounts, w.Gates
	if err := c.takeMachine(s); err != nil {
		return nil, err
	}
	if err := c.startControlPlane(ctx, s); err != nil {
		return nil, err
	}
	return s, c.writeImages(s)
}

// waitAPI waits until pods can be made.
func (c *Cluster) waitAPI(ctx context.Context, api *client) error {
	ctx, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()
	if err := waitFor(ctx, func() error { return api.ready(ctx) }); err != nil {
		return &StepError{Step: "wait for the API server", Log: c.log("kube-apiserver"), Err: err}
	}
	if err := waitFor(ctx, func() error { return api.hasDefaultServiceAccount(ctx) }); err != nil {
		return &StepError{Step: "wait for the default service account", Log: c.log("kube-controller-manager"), Err: err}
	}
	return nil
}

// waitNode waits until a node's kubelet serves and has reported the node Ready at
// since or later. The API keeps the time of a report in whole seconds.
func (c *Cluster) waitNode(ctx context.Context, s *state, api *client, node *nodeState, since time.Time) error {
	ctx, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()
	since = since.Truncate(time.Second)
	err := waitFor(ctx, func() error {
		if err := kubeletHealthy(ctx, s.Network.node(node.Number)); err != nil {
			return err
		}
		condition, err := api.readyCondition(ctx, node.Name)
		if err != nil {
			return err
		}
		if condition.Status != "True" || condition.Heartbeat.Before(since) {
			return fmt.Errorf("not Ready: %s", condition.Message)
		}
		return nil
	})
	if err != nil {
		return &StepError{Step: "wait for node " + node.Name + " to be Ready", Log: c.log(node.Name + "-kubelet"), Err: err}
	}
	return nil
}

// waitFor tries until it succeeds; its error is the last one, once ctx has ended.
func waitFor(ctx context.Context, try func() error) error {
	var last error
	err := proc.Poll(ctx, 50*time.Millisecond, func() bool {
		// A try that the end of ctx broke off says nothing new.
		if err := try(); ctx.Err() == nil || err == nil {
			last = err
			return err == nil
		}
		return false
	})
	if err != nil && last != nil {
		return fmt.Errorf("%w (%w)", last, err)
	}
	return err
}
