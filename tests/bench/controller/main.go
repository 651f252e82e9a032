// SPDX-License-Identifier: Apache-2.0

// Command controller measures what a crowd costs gpu-compat-controller: 1000 nodes,
// 10 000 claims, 5000 legacy pods, on an API server in the same process that lets so
// many requests through as the controller's client does. What each line of the table
// means is in docs/internals/performance.md.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/urfave/cli/v3"

	"github.com/gpushare/dra-driver-gpushare/tests/bench/internal/machine"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := command().Run(ctx, os.Args)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "controller:", err)
		os.Exit(1)
	}
}

func command() *cli.Command {
	return &cli.Command{
		Name:  "controller",
		Usage: "measure what a crowd costs gpu-compat-controller",
		Flags: []cli.Flag{
			&cli.IntFlag{Name: "nodes", Value: 1000, Usage: "`NUMBER` of nodes, with ten claims each"},
			&cli.IntFlag{Name: "pods", Value: 5000, Usage: "`NUMBER` of legacy pods"},
			&cli.DurationFlag{Name: "most", Value: 40 * time.Second, Usage: "how long to wait for what a step is about"},
		},
		Action: func(ctx context.Context, c *cli.Command) error {
			described := machine.Describe()
			b, err := newBench(c.Int("nodes"), c.Int("pods"), c.Duration("most"))
			if err != nil {
				return err
			}
			lines, err := b.run(ctx)
			if err != nil {
				return err
			}
			fmt.Printf("%s; %d nodes, %d claims, %d legacy pods\n\n", described, b.nodes, 10*b.nodes, b.pods)
			fmt.Println("| step | processor time | requests | lag |\n| --- | --- | --- | --- |")
			for _, l := range lines {
				fmt.Println(l)
			}
			return nil
		},
	}
}
