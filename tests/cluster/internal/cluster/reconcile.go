// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// reconcile makes the cluster's nodes the wanted ones and reports whether anything
// had to be done.
func (c *Cluster) reconcile(ctx context.Context, s *state, wanted []wantedNode, images []string,
	laps *laps) (changed bool, err error) {
	api, err := newClient(c.path("pki"), s.Network)
	if err != nil {
		return false, err
	}
	todo := planNodes(s.Nodes, wanted, func(n *nodeState) bool { return n.Made && n.Init.Alive() })
	for _, node := range todo.remove {
		c.Progress("removing node %s", node.Name)
		if err := c.removeNode(ctx, s, api, node); err != nil {
			return true, err
		}
	}
	laps.end("nodes removed")
	if err := c.addNodes(ctx, s, todo.add, images, laps); err != nil {
		return true, err
	}
	laps.end("nodes started")
	if err := c.waitAPI(ctx, api); err != nil {
		return true, err
	}
	laps.end("API server ready")
	for _, node := range s.Nodes {
		if err := c.waitNode(ctx, s, api, node, time.Time{}); err != nil {
			return true, err
		}
	}
	laps.end("nodes Ready")
	for _, relabel := range todo.relabel {
		c.Progress("node %s: mode label %q instead of %q", relabel.node.Name, relabel.mode, relabel.node.Mode)
		if err := api.label(ctx, relabel.node.Name, relabel.mode); err != nil {
			return true, fmt.Errorf("set the mode label of node %s: %w", relabel.node.Name, err)
		}
		if err := c.update(s, func() { relabel.node.Mode = relabel.mode }); err != nil {
			return true, err
		}
	}
	return !todo.empty(), nil
}

// plan is what has to be done to nodes.
type plan struct {
	remove  []*nodeState
	add     []wantedNode
	relabel []relabelling
}

type relabelling struct {
	node *nodeState
	mode string
}

func (p plan) empty() bool { return len(p.remove)+len(p.add)+len(p.relabel) == 0 }

func planNodes(have []*nodeState, wanted []wantedNode, usable func(*nodeState) bool) plan {
	var p plan
	kept := map[string]bool{}
	for _, node := range have {
		keep := false
		for _, w := range wanted {
			if w.Name != node.Name || w.gpus != node.GPUs || w.StockTimers != node.StockTimers ||
				!usable(node) {
				continue
			}
			keep = true
			if w.Mode != node.Mode {
				p.relabel = append(p.relabel, relabelling{node: node, mode: w.Mode})
			}
		}
		kept[node.Name] = keep
		if !keep {
			p.remove = append(p.remove, node)
		}
	}
	for _, w := range wanted {
		if !kept[w.Name] {
			p.add = append(p.add, w)
		}
	}
	return p
}

// addNodes makes and starts nodes, side by side. They may not be Ready yet when it
// returns.
func (c *Cluster) addNodes(ctx context.Context, s *state, wanted []wantedNode, images []string, laps *laps) error {
	if len(wanted) == 0 {
		return nil
	}
	needed, err := c.nodeNeeds(ctx, s, wanted, images)
	if err != nil {
		return err
	}
	laps.end("images and simulated GPUs made")
	var group sync.WaitGroup
	errs := make([]error, len(wanted))
	for i, w := range wanted {
		node := &nodeState{Node: w.Node, GPUs: w.gpus, Images: maps.Clone(needed)}
		err := c.update(s, func() {
			node.Number = s.freeNumber()
			s.Nodes = append(slices.Clone(s.Nodes), node)
		})
		if err != nil {
			return err
		}
		c.Progress("starting node %s", node.Name)
		group.Go(func() { errs[i] = c.makeNode(ctx, s, node, w.file) })
	}
	group.Wait()
	return errors.Join(errs...)
}

// nodeNeeds makes what new nodes are made of, and gives the digests of their images by file
// name.
func (c *Cluster) nodeNeeds(ctx context.Context, s *state, wanted []wantedNode, images []string) (map[string]string,
	error) {
	unlock, err := c.lockNode(shared)
	if err != nil {
		return nil, err
	}
	defer unlock()
	var group sync.WaitGroup
	var simulatorErr error
	group.Go(func() { simulatorErr = c.buildSimulator(ctx, wanted) })
	digests, err := c.ensureImageStore(ctx, s,
		append([]string{c.path("images", "pause.tar"), c.path("images", "gpu-probe.tar")}, images...))
	group.Wait()
	return digests, errors.Join(simulatorErr, err)
}

// simulator are the programs that give nodes their GPUs, by their names in the
// cluster's directory and their packages. Those that run on a node find no C
// library there.
var simulator = []struct {
	name, pkg string
	static    bool
}{
	{name: "simnode", pkg: "./tests/standins/sim/simnode"},
	{name: "mpsstandin", pkg: "./tests/standins/mps", static: true},
}

// nvmlLibrary is the nodes' NVML, in the cluster's directory.
const nvmlLibrary = "libnvidia-ml.so"

// buildSimulator builds what gives nodes their GPUs, where any has.
func (c *Cluster) buildSimulator(ctx context.Context, wanted []wantedNode) error {
	needed := false
	for _, w := range wanted {
		needed = needed || w.file != ""
	}
	if !needed {
		return nil
	}
	log, err := os.Create(c.log("simnode-build"))
	if err != nil {
		return fmt.Errorf("build the simulator of GPUs: %w", err)
	}
	defer log.Close()
	build := func(what string, env []string, command ...string) error {
		cmd := exec.CommandContext(ctx, command[0], command[1:]...)
		cmd.Dir = c.Checkout
		cmd.Env = append(append(os.Environ(), "GOWORK=off"), env...)
		cmd.Stdout, cmd.Stderr = log, log
		if err := cmd.Run(); err != nil {
			return &StepError{Step: "build the simulator of GPUs (" + what + "); --no-simulate does without",
				Log: log.Name(), Err: err}
		}
		return nil
	}
	// What is up to date there is not linked again for each cluster.
	made := filepath.Join(c.Checkout, ".build", "simulator")
	if err := os.MkdirAll(made, 0o755); err != nil {
		return fmt.Errorf("build the simulator of GPUs: %w", err)
	}
	lock, err := c.flock(filepath.Join(made, "lock"), unix.LOCK_EX, "the simulator of GPUs")
	if err != nil {
		return err
	}
	defer lock.Close()
	for _, program := range simulator {
		var env []string
		if program.static {
			env = []string{"CGO_ENABLED=0"}
		}
		err := build(program.pkg, env, "go", "build", "-buildvcs=false", "-o", filepath.Join(made, program.name), program.pkg)
		if err != nil {
			return err
		}
		if err := copyProgram(filepath.Join(made, program.name), c.path("bin", program.name)); err != nil {
			return err
		}
	}
	library := filepath.Join(made, nvmlLibrary)
	err = build("tests/standins/nvmllib", nil, filepath.Join(c.Checkout, "tests/standins/nvmllib/build.sh"), library)
	if err != nil {
		return err
	}
	return copyProgram(library, c.path("bin", nvmlLibrary))
}

// copyProgram copies a program or a library. Those that run the one before keep it.
func copyProgram(from, to string) error {
	content, err := os.ReadFile(from)
	if err == nil {
		err = os.MkdirAll(filepath.Dir(to), 0o755)
	}
	if err == nil {
		err = os.WriteFile(to+".new", content, 0o755)
	}
	if err == nil {
		err = os.Rename(to+".new", to)
	}
	if err != nil {
		return fmt.Errorf("copy %s: %w", from, err)
	}
	return nil
}
