package cluster

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpushare/dra-driver-gpushare/tests/cluster/internal/build"
	"github.com/gpushare/dra-driver-gpushare/tests/cluster/internal/proc"
)

// wantedNode is a node as it is to be.
type wantedNode struct {
	Node
	file  string // the machine file; empty for a node without cards
	cards string // its digest
}

// Up brings the cluster into being, or an existing one to having these nodes: it
// adds those that are missing or dead, removes those not named and makes those
// anew whose cards are others. What is left of a cluster that no longer works it
// takes down first. When it returns without an error, every node is Ready and
// pods can be made. With simulate, a node that names a machine has its cards.
func (c *Cluster) Up(ctx context.Context, nodes []Node, simulate bool) error {
	if err := checkRoot(); err != nil {
		return err
	}
	started := time.Now()
	wanted, err := c.resolve(nodes, simulate)
	if err != nil {
		return err
	}
	components, err := c.Builder.Ensure(ctx, build.Components())
	if err != nil {
		return err
	}
	unlock, err := c.lock(true)
	if err != nil {
		return err
	}
	defer unlock()
	s, err := c.usable(ctx, components)
	if err != nil {
		return err
	}
	if s == nil {
		c.Progress("starting the control plane")
		if s, err = c.begin(ctx, components); err != nil {
			return err
		}
	}
	changed, err := c.reconcile(ctx, s, wanted)
	if err != nil {
		return err
	}
	if !changed {
		c.Progress("the cluster is up as asked for: %s", c.Kubeconfig())
		return nil
	}
	c.Progress("cluster ready in %.1f s: export KUBECONFIG=%s", time.Since(started).Seconds(), c.Kubeconfig())
	return nil
}

// checkRoot says what is missing where the caller may not do what a cluster takes.
func checkRoot() error {
	if os.Geteuid() != 0 {
		return errors.New("a cluster's nodes need root on this machine, for namespaces, mounts and control groups: run this as root, for example with sudo -E")
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
				return nil, fmt.Errorf("machine file of node %s: %w; machines are the file names in demo/machines without .yaml, or paths", node.Name, err)
			}
			sum := sha256.Sum256(content)
			w.cards = hex.EncodeToString(sum[:])
		}
		wanted = append(wanted, w)
	}
	return wanted, nil
}

// usable gives the state of a cluster that can be gone on with, and nil where there
// is none any more.
func (c *Cluster) usable(ctx context.Context, components map[string]string) (*state, error) {
	s, err := c.load()
	if s == nil || err != nil {
		return nil, err
	}
	reason, err := c.defect(ctx, s, components)
	if reason == "" || err != nil {
		return s, err
	}
	c.Progress("taking down what is left of the cluster in %s: %s", c.Dir, reason)
	return nil, c.clear(ctx, s)
}

// defect says why the control plane cannot be gone on with; empty where it can.
func (c *Cluster) defect(ctx context.Context, s *state, components map[string]string) (string, error) {
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
func (c *Cluster) begin(ctx context.Context, components map[string]string) (*state, error) {
	s, err := newState()
	if err != nil {
		return nil, err
	}
	s.Components = components
	if err := c.takeNetwork(s); err != nil {
		return nil, err
	}
	if err := c.startControlPlane(ctx, s); err != nil {
		return nil, err
	}
	return s, c.writeImages(s)
}

// takeNetwork chooses addresses that are free and takes them, before anybody else
// who does the same on this machine can choose them too.
func (c *Cluster) takeNetwork(s *state) error {
	file, err := os.OpenFile(filepath.Join(c.Builder.Cache, "addresses.lock"), os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return fmt.Errorf("lock the choice of addresses: %w", err)
	}
	defer file.Close()
	if err := unix.Flock(int(file.Fd()), unix.LOCK_EX); err != nil {
		return fmt.Errorf("lock the choice of addresses: %w", err)
	}
	used, err := usedPrefixes()
	if err != nil {
		return err
	}
	network, err := chooseNetwork(used)
	if err != nil {
		return err
	}
	if err := c.update(s, func() { s.Network = network }); err != nil {
		return err
	}
	return addAddress(network.api())
}

// reconcile makes the cluster's nodes the wanted ones and says whether anything
// had to be done.
func (c *Cluster) reconcile(ctx context.Context, s *state, wanted []wantedNode) (changed bool, err error) {
	api, err := newClient(c.path("pki"), s.Network)
	if err != nil {
		return false, err
	}
	todo := planNodes(s.Nodes, wanted, func(n *nodeState) bool { return n.Init.Alive() })
	for _, node := range todo.remove {
		c.Progress("removing node %s", node.Name)
		if err := c.removeNode(ctx, s, api, node); err != nil {
			return true, err
		}
	}
	if err := c.addNodes(ctx, s, todo.add); err != nil {
		return true, err
	}
	if err := c.waitAPI(ctx, api); err != nil {
		return true, err
	}
	for _, node := range s.Nodes {
		if err := c.waitNode(ctx, s, api, node, time.Time{}); err != nil {
			return true, err
		}
	}
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

func planNodes(have []*nodeState, wanted []wantedNode, alive func(*nodeState) bool) plan {
	var p plan
	kept := map[string]bool{}
	for _, node := range have {
		keep := false
		for _, w := range wanted {
			if w.Name != node.Name || w.cards != node.Cards || !alive(node) {
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
func (c *Cluster) addNodes(ctx context.Context, s *state, wanted []wantedNode) error {
	if err := c.buildSimulator(ctx, wanted); err != nil {
		return err
	}
	var group sync.WaitGroup
	errs := make([]error, len(wanted))
	for i, w := range wanted {
		node := &nodeState{Node: w.Node, Number: s.freeNumber(), Cards: w.cards, Images: map[string]string{}}
		if err := c.update(s, func() { s.Nodes = append(s.Nodes, node) }); err != nil {
			return err
		}
		c.Progress("starting node %s", node.Name)
		group.Go(func() { errs[i] = c.makeNode(ctx, s, node, w.file) })
	}
	group.Wait()
	return errors.Join(errs...)
}

// buildSimulator builds the program that gives nodes their cards, where any has.
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
		return fmt.Errorf("build the simulator of cards: %w", err)
	}
	defer log.Close()
	cmd := exec.CommandContext(ctx, "go", "build", "-buildvcs=false", "-o", c.path("bin", "simnode"), "./tests/simnode")
	cmd.Dir = c.Checkout
	cmd.Env = append(os.Environ(), "GOWORK=off")
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Run(); err != nil {
		return &StepError{Step: "build the simulator of cards (tests/simnode); --no-simulate does without", Log: log.Name(), Err: err}
	}
	return nil
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

func fileDigest(path string) (string, error) {
	file, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer file.Close()
	hash := sha256.New()
	if _, err := io.Copy(hash, file); err != nil {
		return "", fmt.Errorf("read %s: %w", path, err)
	}
	return hex.EncodeToString(hash.Sum(nil)), nil
}
