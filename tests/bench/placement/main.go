// SPDX-License-Identifier: Apache-2.0

// Command placement places the pods of Alibaba's published GPU trace on its nodes, by the policies of the paper on it
// (FGD, USENIX ATC '23), by those of the stock scheduler, and by the driver's score of nodes. It takes no cluster.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/urfave/cli/v3"
	"golang.org/x/sync/errgroup"

	"github.com/gpushare/dra-driver-gpushare/pkg/placement/score"
	"github.com/gpushare/dra-driver-gpushare/tests/bench/internal/machine"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := command().Run(ctx, os.Args)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "placement:", err)
		os.Exit(1)
	}
}

// traceDir is where the trace lies beside a checkout.
const traceDir = "../shared/data/openb"

var workloads = []string{"default", "gpushare100", "gpuspec33", "multigpu50"}

func command() *cli.Command {
	return &cli.Command{
		Name:  "placement",
		Usage: "place the pods of a trace by several policies, and print a table of what became of the GPUs",
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "trace", Value: traceDir, Usage: "`DIRECTORY` with the node list and the pod lists of the " +
				"trace, and the published results"},
			&cli.StringSliceFlag{Name: "workload", Value: workloads, Usage: "`NAME` of a pod list"},
			&cli.StringSliceFlag{Name: "only", Usage: "`NAME` of a policy, without others"},
			&cli.BoolFlag{Name: "departures", Usage: "have the pods come and go by the times of the trace, with the first seed"},
			&cli.IntFlag{Name: "seeds", Value: 5, Usage: "`NUMBER` of seeds, from 42 on"},
		},
		Action: run,
	}
}

func contenders() []contender {
	is := func(p policy) func(*workload) policy { return func(*workload) policy { return p } }
	newly := func(s score.Setting) func(*workload) policy { return func(*workload) policy { return newBest(s) } }
	return []contender{
		{name: "Random", paper: "Random", make: is(random{})},
		{name: "BestFit", paper: "BestFit", make: func(*workload) policy { return &bestFit{} }},
		{name: "FGD", paper: "FGD", make: func(w *workload) policy { return newFGD(w) }},
		{name: "stock", make: is(stock{})},
		{name: "stock + taint", make: is(stock{}), taint: true},
		{name: "best", make: newly(score.Best)},
		{name: "best + taint", make: newly(score.Best), taint: true},
		{name: "binpack + taint", make: newly(score.Binpack), taint: true},
		{name: "spread + taint", make: newly(score.Spread), taint: true},
	}
}

// chosen are the contenders with some of the names, all without any.
func chosen(names []string) []contender {
	var out []contender
	for _, c := range contenders() {
		if len(names) == 0 {
			out = append(out, c)
		}
		for _, name := range names {
			if c.name == name {
				out = append(out, c)
			}
		}
	}
	return out
}

func run(_ context.Context, c *cli.Command) error {
	dir := c.String("trace")
	nodes, err := readNodes(dir)
	if err != nil {
		return err
	}
	paper, err := readPublished(dir)
	if err != nil {
		return err
	}
	var lists []*workload
	for _, name := range c.StringSlice("workload") {
		w, err := readWorkload(dir, name)
		if err != nil {
			return err
		}
		lists = append(lists, w)
	}
	fmt.Printf("Taken %s.\n", machine.Describe())
	if c.Bool("departures") {
		return departures(nodes, lists, chosen(c.StringSlice("only")))
	}
	return inflation(nodes, lists, chosen(c.StringSlice("only")), c.Int("seeds"), paper)
}

// inflation prints what becomes of arrivals without departures.
func inflation(nodes []node, lists []*workload, by []contender, seeds int, paper map[string]float64) error {
	results := make([][][]result, len(by))
	took := make([]time.Duration, len(by))
	for i := range by {
		began := time.Now()
		results[i] = make([][]result, len(lists))
		var all errgroup.Group
		all.SetLimit(runtime.NumCPU())
		for j := range lists {
			results[i][j] = make([]result, seeds)
			for s := range seeds {
				all.Go(func() error {
					results[i][j][s] = inflate(nodes, lists[j], firstSeed+uint64(s), by[i])
					return nil
				})
			}
		}
		if err := all.Wait(); err != nil {
			return err
		}
		took[i] = time.Since(began)
		fmt.Fprintf(os.Stderr, "placement: %s took %s\n", by[i].name, took[i].Round(time.Second))
	}
	head := []string{"policy"}
	for _, w := range lists {
		head = append(head, w.name)
	}
	printTable(head, len(by), func(i int) []string {
		row := []string{by[i].name}
		for j, w := range lists {
			m := mean(results[i][j])
			cell := fmt.Sprintf("%.2f (%.1f), %.0f %%", m.allocated, m.fragments, m.large)
			if by[i].paper != "" {
				published := meanPublished(paper, w.name, by[i].paper, seeds)
				cell += fmt.Sprintf("; paper %.2f", published)
			}
			row = append(row, cell)
		}
		return row
	})
	return nil
}

// times are when departures looks at the cluster, in percent of the time of the last arrival.
var times = []int64{82, 88, 92, 96, 98, 100}

// departures prints how things stand at some times while pods come and go.
func departures(nodes []node, lists []*workload, by []contender) error {
	for _, w := range lists {
		results := make([][]moment, len(by))
		var all errgroup.Group
		all.SetLimit(runtime.NumCPU())
		for i := range by {
			all.Go(func() error {
				began := time.Now()
				results[i] = comeAndGo(nodes, w, firstSeed, by[i], times)
				fmt.Fprintf(os.Stderr, "placement: %s took %s\n", by[i].name, time.Since(began).Round(time.Second))
				return nil
			})
		}
		if err := all.Wait(); err != nil {
			return err
		}
		head := []string{w.name + ", asked"}
		for _, m := range results[0] {
			head = append(head, fmt.Sprintf("%.1f %%", m.asked))
		}
		printTable(head, len(by), func(i int) []string {
			row := []string{by[i].name}
			for _, m := range results[i] {
				row = append(row, fmt.Sprintf("%.2f (%.1f), %.0f %%", m.allocated, m.fragments, m.large))
			}
			return row
		})
	}
	return nil
}

const firstSeed = 42

func mean(of []result) result {
	var sum result
	n := float64(len(of))
	for _, r := range of {
		sum.allocated += r.allocated / n
		sum.fragments += r.fragments / n
		sum.large += r.large / n
	}
	return sum
}

func meanPublished(paper map[string]float64, workload, policy string, seeds int) float64 {
	sum := 0.0
	for s := range seeds {
		sum += paper[published(workload, policy, strconv.Itoa(firstSeed+s))] / float64(seeds)
	}
	return sum
}

func printTable(head []string, rows int, row func(i int) []string) {
	fmt.Printf("\n| %s |\n|%s\n", strings.Join(head, " | "), strings.Repeat(" --- |", len(head)))
	for i := range rows {
		fmt.Printf("| %s |\n", strings.Join(row(i), " | "))
	}
}
