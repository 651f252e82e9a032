// SPDX-License-Identifier: Apache-2.0

// Command scale measures what the driver's devices cost the scheduler of a
// cluster of 1000 nodes: in the allocator alone, and in a real scheduler, with
// Nodes that have no kubelet. tests/bench/nodes.sh makes the cluster; what each line
// of the table means is in docs/internals/performance.md.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/urfave/cli/v3"
	resourceapi "k8s.io/api/resource/v1"

	"github.com/gpushare/dra-driver-gpushare/deviceclasses"
	"github.com/gpushare/dra-driver-gpushare/tests/bench/internal/machine"
)

// namespace is that of all pods and claims.
const namespace = "scale"

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := command().Run(ctx, os.Args)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "scale:", err)
		os.Exit(1)
	}
}

func command() *cli.Command {
	return &cli.Command{
		Name:  "scale",
		Usage: "measure scheduling on many nodes, on a cluster made by tests/bench/nodes.sh",
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "kubeconfig",
				Usage: "kubeconfig `FILE` of the cluster's administrator; without it only what needs no cluster is measured"},
			&cli.StringFlag{Name: "scheduler",
				Usage: "`URL` of the scheduler's own server, for its metrics; needed with --kubeconfig"},
			&cli.StringFlag{Name: "controller-manager", Usage: "`URL` of the controller manager's own server, likewise"},
			&cli.StringFlag{Name: "controller",
				Usage: "gpu-compat-controller, a `FILE`: modes are measured with its option best-node, too"},
			&cli.StringFlag{Name: "machines", Value: "demo/machines", Usage: "`DIRECTORY` of the machine files"},
			&cli.IntFlag{Name: "nodes", Value: 1000, Usage: "`NUMBER` of nodes"},
			&cli.IntFlag{Name: "shares", Value: 10000, Usage: "`NUMBER` of shares that are allocated elsewhere"},
			&cli.StringSliceFlag{Name: "only", Usage: "measure only these `MODES`"},
			&cli.StringFlag{Name: "profiles",
				Usage: "`DIRECTORY` for CPU profiles: of the allocator, and of the scheduler while it works on bursts"},
		},
		Action: run,
	}
}

func run(ctx context.Context, c *cli.Command) error {
	described := machine.Describe()
	dir, err := os.MkdirTemp("", "scale-")
	if err != nil {
		return fmt.Errorf("make a directory to work in: %w", err)
	}
	defer func() {
		if err := os.RemoveAll(dir); err != nil {
			progress("%v", err)
		}
	}()
	installed, err := deviceclasses.All()
	if err != nil {
		return err
	}
	b := &bench{
		contestants: named(contestants(), c.StringSlice("only")),
		fleet:       newFleet(c.Int("nodes"), c.String("machines"), dir), classes: installed, shares: c.Int("shares"),
		profiles: c.String("profiles"), kubeconfig: c.String("kubeconfig"), controller: c.String("controller"),
	}
	for _, contestant := range b.contestants {
		b.table.columns = append(b.table.columns, string(contestant.mode))
		if b.controller != "" && contestant.scheduled {
			b.table.columns = append(b.table.columns, contestant.withBestNode())
		}
	}
	b.table.columns = append(b.table.columns, noClaim)
	var notes []string
	if err := step("allocator", func() error { return b.allocator(ctx) }); err != nil {
		return err
	}
	if kubeconfig := c.String("kubeconfig"); kubeconfig != "" {
		if notes, err = b.onCluster(ctx, kubeconfig, c.String("scheduler"), c.String("controller-manager")); err != nil {
			return err
		}
	}
	fmt.Println(strings.Join(append([]string{described + fmt.Sprintf("; %d nodes", len(b.fleet.nodes))}, notes...), "; "))
	fmt.Println()
	return b.table.write(os.Stdout)
}

// bench is what is measured, and with what.
type bench struct {
	contestants []contestant
	fleet       *fleet
	classes     []*resourceapi.DeviceClass
	shares      int
	profiles    string
	kubeconfig  string
	// controller is the program, empty for without.
	controller string
	table      table
}

// allocator fills the lines about the allocator.
func (b *bench) allocator(ctx context.Context) error {
	for _, c := range b.contestants {
		published, err := b.fleet.published(ctx, c)
		if err != nil {
			return err
		}
		stop, err := b.profile("allocator-" + string(c.mode))
		if err != nil {
			return err
		}
		err = b.allocatorOf(ctx, c, published)
		stop()
		if err != nil {
			return err
		}
	}
	return nil
}

func (b *bench) allocatorOf(ctx context.Context, c contestant, published [][]*resourceapi.ResourceSlice) error {
	const perPod = "NewAllocator, µs per pod, p50 / max"
	for _, s := range scenarios(b.shares) {
		perNode := "allocator, µs per node, p50 / p99, " + s.name
		if s.asks == anyGPU {
			b.table.aim(perNode, targets(b.contestants))
		}
		if !s.inMode(c) {
			continue
		}
		figures, err := measureAllocator(ctx, b.fleet.nodes, published, b.classes, c, s, s.state(published))
		if err != nil {
			return fmt.Errorf("%s: %w", s.name, err)
		}
		b.table.set(perNode, string(c.mode), micros(figures.perNode, 0.5, 0.99))
		b.table.set(perPod, string(c.mode), micros(figures.perPod, 0.5, 1))
	}
	return nil
}

// targets names the targets of the modes that have one.
func targets(all []contestant) string {
	var out []string
	for _, c := range all {
		if c.target > 0 {
			out = append(out, fmt.Sprintf("%s ≤ %d", c.mode, c.target.Microseconds()))
		}
	}
	return strings.Join(out, ", ")
}

// step runs one part of the benchmark and says how long it took.
func step(name string, f func() error) error {
	start := time.Now()
	if err := f(); err != nil {
		return fmt.Errorf("measure %s: %w", name, err)
	}
	progress("measured: %s, in %.0f s", name, time.Since(start).Seconds())
	return nil
}

func progress(format string, args ...any) { fmt.Fprintf(os.Stderr, "scale: "+format+"\n", args...) }
