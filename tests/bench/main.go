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
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/urfave/cli/v3"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/gpushare/dra-driver-gpushare/tests/bench/internal/machine"
	"github.com/gpushare/dra-driver-gpushare/tests/bench/internal/pods"
	"github.com/gpushare/dra-driver-gpushare/tests/bench/internal/stats"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := command().Run(ctx, os.Args)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

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
			&cli.StringFlag{Name: "machine", Required: true, Usage: "machine `FILE` of the GPUs to simulate"},
			&cli.StringFlag{Name: "nvml", Required: true, Usage: "NVML `LIBRARY` of simulated nodes"},
			&cli.StringFlag{Name: "dir", Required: true, Usage: "`DIRECTORY`, on the disk to measure, to work in"},
			&cli.StringSliceFlag{Name: "only", Usage: "run only these `SECTIONS` of " + strings.Join(sectionNames(), ", ")},
			&cli.BoolFlag{Name: "keep", Usage: "leave the directory, with the drivers' logs, behind"},
		},
		Action: run,
	}
}

// bench is what the sections work with.
type bench struct {
	client   kubernetes.Interface
	node     string
	dir      string
	gpushare *contender
	trivial  *contender
	// nvidia is nil where there is nothing of it to compare with.
	nvidia *contender
	pods   *pods.Runner
}

// section measures one thing and says what came of it.
type section struct {
	name string
	run  func(context.Context, *bench) ([]stats.Row, error)
}

var sections = []section{
	{"socket", measureSocket},
	{"start", measureStart},
	{"pods", measurePods},
	{"rest", measureRest},
}

func sectionNames() []string {
	names := make([]string, len(sections))
	for i, s := range sections {
		names[i] = s.name
	}
	return names
}

func run(ctx context.Context, c *cli.Command) (err error) {
	only := c.StringSlice("only")
	for _, name := range only {
		if !slices.Contains(sectionNames(), name) {
			return fmt.Errorf("--only %s: there is no such section; there are %s", name, strings.Join(sectionNames(), ", "))
		}
	}
	described := machine.Describe()
	b, cleanUp, err := setUp(ctx, c)
	if err != nil {
		return err
	}
	defer cleanUp()
	var rows []stats.Row
	// Also what was measured before a section that fails.
	defer func() {
		fmt.Println(described)
		fmt.Println()
		err = errors.Join(err, stats.WriteTable(os.Stdout, rows))
	}()
	for _, s := range sections {
		if len(only) > 0 && !slices.Contains(only, s.name) {
			continue
		}
		start := time.Now()
		progress("measuring: %s", s.name)
		more, err := s.run(ctx, b)
		if err != nil {
			return fmt.Errorf("measure %s: %w", s.name, err)
		}
		rows = append(rows, more...)
		progress("measured: %s, in %.0f s", s.name, time.Since(start).Seconds())
	}
	return nil
}

func progress(format string, args ...any) { fmt.Fprintf(os.Stderr, "bench: "+format+"\n", args...) }

func setUp(ctx context.Context, c *cli.Command) (b *bench, cleanUp func(), err error) {
	client, err := newClient(c.String("kubeconfig"))
	if err != nil {
		return nil, nil, err
	}
	parent, err := filepath.Abs(c.String("dir"))
	if err != nil {
		return nil, nil, fmt.Errorf("make a directory to work in: %w", err)
	}
	if err := os.MkdirAll(parent, 0o755); err != nil {
		return nil, nil, fmt.Errorf("make a directory to work in: %w", err)
	}
	dir, err := os.MkdirTemp(parent, "run-")
	if err != nil {
		return nil, nil, fmt.Errorf("make a directory to work in: %w", err)
	}
	cleanUp = func() {
		if c.Bool("keep") {
			progress("the drivers' logs and files are in %s", dir)
		} else if err := os.RemoveAll(dir); err != nil {
			progress("%v", err)
		}
	}
	b = &bench{client: client, node: c.String("node"), dir: dir}
	if err := b.fill(ctx, c); err != nil {
		cleanUp()
		return nil, nil, err
	}
	return b, cleanUp, nil
}

func (b *bench) fill(ctx context.Context, c *cli.Command) error {
	if err := b.makeObjects(ctx); err != nil {
		return err
	}
	if err := b.makeContenders(ctx, c); err != nil {
		return err
	}
	var err error
	b.pods, err = pods.New(ctx, b.client, namespace, b.node)
	return err
}

func newClient(kubeconfig string) (kubernetes.Interface, error) {
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("configure the API client: %w", err)
	}
	config.QPS = -1 // none of its limits
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("make the API client: %w", err)
	}
	return client, nil
}
