// SPDX-License-Identifier: Apache-2.0

// Command bench measures the driver against the least that a driver can be, on
// a real cluster and on one machine, and prints one table. tests/bench/run.sh
// makes the cluster; what each line means is in docs/internals/performance.md.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/urfave/cli/v3"

	"github.com/gpushare/dra-driver-gpushare/internal/program"
	"github.com/gpushare/dra-driver-gpushare/tests/bench/internal/nodes"
	"github.com/gpushare/dra-driver-gpushare/tests/bench/internal/pods"
	"github.com/gpushare/dra-driver-gpushare/tests/bench/internal/report"
)

func main() { os.Exit(program.Main(command())) }

func command() *cli.Command {
	return &cli.Command{
		Name:  "bench",
		Usage: "measure the driver on a cluster made by tests/bench/run.sh",
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "kubeconfig", Required: true, Usage: "kubeconfig `FILE` of the cluster's administrator"},
			&cli.StringFlag{Name: "node", Value: "n1", Usage: "`NAME` of the node whose pods are measured"},
			&cli.StringFlag{Name: "plugin", Required: true, Usage: "the `PROGRAM` gpu-kubelet-plugin"},
			&cli.StringFlag{Name: "hook", Required: true, Usage: "the `PROGRAM` gpu-cdi-hook"},
			&cli.StringFlag{Name: "trivial", Required: true, Usage: "the `PROGRAM` built from tests/bench/trivial"},
			&cli.StringFlag{Name: "nvidia", Usage: "the `PROGRAM` gpu-kubelet-plugin of NVIDIA's driver, to compare with"},
			&cli.StringFlag{Name: "before", Usage: "an older build of the `PROGRAM` gpu-kubelet-plugin, to compare with in " +
				"all but the pods"},
			&cli.StringFlag{Name: "machine", Required: true, Usage: "machine `FILE` of the GPUs to simulate"},
			&cli.StringFlag{Name: "nvml", Required: true, Usage: "NVML `LIBRARY` of simulated nodes"},
			&cli.StringFlag{Name: "dir", Required: true, Usage: "`DIRECTORY`, on the disk to measure, to work in"},
			&cli.StringSliceFlag{Name: "only", Usage: "run only these `SECTIONS` of socket, start, pods, rest"},
			&cli.BoolFlag{Name: "keep", Usage: "leave the directory, with the drivers' logs, behind"},
		},
		Action: run,
	}
}

// bench has what the sections need, and the table that they fill.
type bench struct {
	*nodes.Cluster
	node, dir string
	// contenders are the drivers under comparison: this one, the trivial one, and NVIDIA's if it is installed.
	contenders []*contender
	table      report.Table
}

// These are the columns of the table, beside the contenders'.
const (
	columnBase   = "without a driver"
	columnRatio  = "gpushare : trivial"
	columnTarget = "target"
)

// section measures one thing.
type section struct {
	name string
	run  func(*bench, context.Context) error
}

func sections() []section {
	return []section{
		{"socket", (*bench).measureSocket},
		{"start", (*bench).measureStart},
		{"pods", (*bench).measurePods},
		{"rest", (*bench).measureRest},
	}
}

func run(ctx context.Context, c *cli.Command) (err error) {
	only := c.StringSlice("only")
	chosen := slices.DeleteFunc(sections(), func(s section) bool {
		return len(only) > 0 && !slices.Contains(only, s.name)
	})
	if len(chosen) == 0 {
		return fmt.Errorf("--only %v: there is no such section", only)
	}
	machine := report.Machine()
	b := &bench{node: c.String("node")}
	if b.dir, err = os.MkdirTemp(c.String("dir"), "run-"); err != nil {
		return fmt.Errorf("make a directory to work in: %w", err)
	}
	if c.Bool("keep") {
		progress("the drivers' logs and files will stay in %s", b.dir)
	} else {
		defer os.RemoveAll(b.dir)
	}
	if err := b.setUp(ctx, c); err != nil {
		return err
	}
	// Also what was measured before a section that fails.
	defer func() {
		fmt.Println(machine)
		err = errors.Join(err, b.table.Write(os.Stdout))
	}()
	for _, s := range chosen {
		start := time.Now()
		progress("measuring: %s", s.name)
		if err := s.run(b, ctx); err != nil {
			return fmt.Errorf("measure %s: %w", s.name, err)
		}
		progress("measured: %s, in %.0f s", s.name, time.Since(start).Seconds())
	}
	return nil
}

func progress(format string, args ...any) { fmt.Fprintf(os.Stderr, "bench: "+format+"\n", args...) }

// setUp makes what is measured.
func (b *bench) setUp(ctx context.Context, c *cli.Command) (err error) {
	if b.Cluster, err = nodes.Connect(c.String("kubeconfig")); err != nil {
		return err
	}
	if b.contenders, err = contenders(c, b.dir); err != nil {
		return err
	}
	b.table.Head = []string{"measure"}
	for _, d := range b.contenders {
		b.table.Head = append(b.table.Head, d.column)
	}
	b.table.Head = append(b.table.Head, columnBase, columnRatio, columnTarget)
	if err := b.makeObjects(ctx); err != nil {
		return err
	}
	b.Pods, err = pods.Watch(ctx, b.Client, namespace, true)
	return err
}

// row fills a line of the table with quantiles of each contender's sample, and compares some of this driver's with
// those of the trivial one.
func (b *bench) row(measure, target string, quantiles, compared []float64, of func(*contender) report.Sample) {
	for _, d := range b.contenders {
		b.table.Set(measure, d.column, of(d).Summary(quantiles...))
	}
	b.table.Set(measure, columnRatio, ratios(of(b.contenders[0]), of(b.contenders[1]), compared))
	b.table.Set(measure, columnTarget, target)
}

// ratios writes the ratio and the difference of some quantiles.
func ratios(ours, floor report.Sample, quantiles []float64) string {
	var out []string
	for _, q := range quantiles {
		a, b := ours.Quantile(q), floor.Quantile(q)
		out = append(out, fmt.Sprintf("%.2f (%s) p%.0f", float64(a)/float64(b), signed(a-b), q*100))
	}
	return strings.Join(out, "; ")
}

// signed writes a difference.
func signed(d time.Duration) string {
	return fmt.Sprintf("%+.1f ms", float64(d)/float64(time.Millisecond))
}
