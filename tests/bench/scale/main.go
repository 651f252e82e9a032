// SPDX-License-Identifier: Apache-2.0

// Command scale measures what the driver's devices cost the scheduler of a
// cluster of 1000 Nodes that have no kubelet. tests/bench/nodes.sh makes the cluster; what each line
// of the table means is in docs/internals/performance.md.
package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/urfave/cli/v3"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/gpushare/dra-driver-gpushare/internal/program"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu/nvml"
	"github.com/gpushare/dra-driver-gpushare/pkg/mode"
	"github.com/gpushare/dra-driver-gpushare/tests/bench/internal/nodes"
	"github.com/gpushare/dra-driver-gpushare/tests/bench/internal/report"
	"github.com/gpushare/dra-driver-gpushare/tests/harness"
	"github.com/gpushare/dra-driver-gpushare/tests/standins/sim"
)

// namespace is that of all pods and claims.
const namespace = "scale"

// columnNoClaim names the column of pods without a claim. The names of a mode's columns with options end with bestNode
// and bestNodeGate.
const columnNoClaim, bestNode, bestNodeGate = "no claim", ", best-node", ", best-node-gate"

func main() { os.Exit(program.Main(command())) }

func command() *cli.Command {
	return &cli.Command{
		Name:  "scale",
		Usage: "measure scheduling on many nodes, on a cluster made by tests/bench/nodes.sh",
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "kubeconfig", Required: true, Usage: "kubeconfig `FILE` in the cluster's directory"},
			&cli.StringFlag{Name: "controller",
				Usage: "gpu-compat-controller, a `FILE`: modes are measured with its option best-node, too"},
			&cli.StringFlag{Name: "machine", Value: "demo/machines/dgx1.yaml", Usage: "machine `FILE` of each node"},
			&cli.IntFlag{Name: "nodes", Value: 1000, Usage: "`NUMBER` of nodes"},
			&cli.StringSliceFlag{Name: "only", Usage: "measure only these `MODES`"},
		},
		Action: run,
	}
}

// bench has what is measured, and the means to measure it.
type bench struct {
	*nodes.Cluster
	modes []mode.Mode
	// machines are the GPUs of each node.
	machines []*gpu.Machine
	// controller is the controller's program, empty to run without one.
	controller string
	// made counts the pods made so far.
	made  int
	table report.Table
}

func run(ctx context.Context, c *cli.Command) error {
	described := fmt.Sprintf("%s; %d nodes", report.Machine(), c.Int("nodes"))
	b := &bench{controller: c.String("controller")}
	var err error
	if b.modes, err = named(c.StringSlice("only")); err != nil {
		return err
	}
	b.table.Head = []string{"measure"}
	for _, m := range b.modes {
		b.table.Head = append(b.table.Head, string(m))
		if b.controller != "" {
			b.table.Head = append(b.table.Head, string(m)+bestNode, string(m)+bestNodeGate)
		}
	}
	b.table.Head = append(b.table.Head, columnNoClaim)
	objects, err := b.simulate(ctx, c.String("machine"), c.Int("nodes"))
	if err != nil {
		return err
	}
	if b.Cluster, err = nodes.Connect(c.String("kubeconfig")); err != nil {
		return err
	}
	templates := map[string]resourceapi.ResourceClaimSpec{}
	for _, m := range b.modes {
		templates[string(m)] = harness.Requests(requestIn(m))
	}
	if err := b.SetUp(ctx, namespace, templates, objects); err != nil {
		return err
	}
	if err := b.measure(ctx); err != nil {
		return err
	}
	fmt.Println(described)
	return b.table.Write(os.Stdout)
}

// much is what nodes have beside GPUs: more than pods ask for.
func much() corev1.ResourceList {
	return corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("96"),
		corev1.ResourceMemory: resource.MustParse("768Gi"), corev1.ResourceEphemeralStorage: resource.MustParse("1Ti"),
		corev1.ResourcePods: resource.MustParse("110")}
}

// simulate makes equal nodes, with GPUs as the product reads them.
func (b *bench) simulate(ctx context.Context, machine string, count int) ([]*corev1.Node, error) {
	spec, err := sim.Load(machine)
	if err != nil {
		return nil, err
	}
	root, err := os.MkdirTemp("", "scale-")
	if err != nil {
		return nil, fmt.Errorf("make a directory for simulated GPUs: %w", err)
	}
	defer os.RemoveAll(root)
	if err := spec.WriteRoot(root); err != nil {
		return nil, fmt.Errorf("simulate machine %s: %w", machine, err)
	}
	var objects []*corev1.Node
	for i := range count {
		node := nodes.Node(fmt.Sprintf("scale-%04d", i), much())
		has, err := nvml.Read(ctx, spec.ForNode(node.Name).NVML(), nvml.Options{SysFS: filepath.Join(root, sim.SysDir)})
		if err != nil {
			return nil, fmt.Errorf("read the GPUs of machine %s: %w", machine, err)
		}
		objects, b.machines = append(objects, node), append(b.machines, has)
	}
	return objects, nil
}
