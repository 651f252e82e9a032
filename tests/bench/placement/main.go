// SPDX-License-Identifier: Apache-2.0

// Command placement places the pods of Alibaba's published GPU trace on its nodes, by the policies of the paper on it
// (FGD, USENIX ATC '23), by those of the stock scheduler, and by the driver's score of nodes. It takes no cluster, but
// to have the stock scheduler itself place them: tests/bench/nodes.sh makes one.
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
	"github.com/gpushare/dra-driver-gpushare/tests/bench/internal/nodes"
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
			&cli.BoolFlag{Name: "defragment", Usage: "fill the cluster as the stock scheduler does, and move pods"},
			&cli.StringFlag{Name: "kubeconfig", Usage: "kubeconfig `FILE` of a cluster, whose scheduler places the pods of " +
				"the first workload and seed, as the one policy of --only"},
			&cli.StringFlag{Name: "scheduler", Usage: "`URL` of the scheduler's own server; needed with --kubeconfig"},
			&cli.StringFlag{Name: "controller-manager", Usage: "`URL` of the controller manager's own server, likewise"},
			&cli.StringFlag{Name: "controller", Usage: "gpu-compat-controller, a `FILE`; likewise"},
			&cli.IntFlag{Name: "every", Value: 1, Usage: "take every `NUMBER`th node of the trace"},
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
		{name: "best", make: newly(score.Best), option: true},
		{name: "best + taint", make: newly(score.Best), taint: true, option: true},
		{name: "best + taint + gate", make: newly(score.Best), taint: true, option: true, gate: true},
		{name: "binpack + taint", make: newly(score.Binpack), taint: true},
		{name: "spread + taint", make: newly(score.Spread), taint: true},
	}
}

// chosen are the contenders with some of the names. Without any, all that differ without a scheduler.
func chosen(names []string) []contender {
	var out []contender
	for _, c := range contenders() {
		if len(names) == 0 && !c.gate {
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

func run(ctx context.Context, c *cli.Command) error {
	dir := c.String("trace")
	of, err := readNodes(dir)
	if err != nil {
		return err
	}
	of = every(of, c.Int("every"))
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
	if kubeconfig := c.String("kubeconfig"); kubeconfig != "" {
		cluster, err := nodes.Connect(kubeconfig, c.String("scheduler"), c.String("controller-manager"))
		if err != nil {
			return err
		}
		return throughScheduler(ctx, cluster, kubeconfig, c.String("controller"), of, lists[0],
			chosen(c.StringSlice("only"))[0])
	}
	if c.Bool("defragment") {
		return defragmented(of, lists, c.Int("seeds"))
	}
	if c.Bool("departures") {
		return departures(of, lists, chosen(c.StringSlice("only")))
	}
	return inflation(of, lists, chosen(c.StringSlice("only")), c.Int("seeds"), paper)
}

// every takes every nth of nodes.
func every(of []node, nth int) []node {
	var out []node
	for i := 0; i < len(of); i += nth {
		out = append(out, of[i])
	}
	return out
}

// inflation prints what becomes of arrivals without departures.
func inflation(of []node, lists []*workload, by []contender, seeds int, paper map[string]float64) error {
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
					results[i][j][s] = inflate(of, lists[j], firstSeed+uint64(s), by[i])
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

// throughScheduler prints what the scheduler of a cluster makes of a workload.
func throughScheduler(ctx context.Context, c *nodes.Cluster, kubeconfig, controller string, of []node, w *workload,
	by contender) error {
	args := []string{"--legacy-policy="}
	if by.option {
		args = append(args, "--best-node")
	}
	running, err := c.StartController(ctx, controller, kubeconfig, controller+".log", args...)
	if err != nil {
		return err
	}
	defer running.Stop()
	r, f, err := schedule(ctx, c, running.Component, of, w, firstSeed, by)
	if err != nil {
		return err
	}
	head := []string{"scheduler, " + w.name, "allocated (fragments), of 4 and 8 GPUs", "bound, refused", "pods a second",
		"processor time a pod: scheduler, controller", "nominations: right, wrong, none"}
	printTable(head, 1, func(int) []string {
		return []string{by.name, fmt.Sprintf("%.2f (%.1f), %.0f %%", r.allocated, r.fragments, r.large),
			fmt.Sprintf("%d, %d", f.bound, f.refused), fmt.Sprintf("%.0f", f.perSecond),
			fmt.Sprintf("%.1f, %.1f ms", f.scheduler.Seconds()*1000, f.controller.Seconds()*1000),
			fmt.Sprintf("%d, %d, %d", f.right, f.wrong, f.none)}
	})
	return nil
}

// times are when departures looks at the cluster, in percent of the time of the last arrival.
var times = []int64{82, 88, 92, 96, 98, 100}

// departures prints how things stand at some times while pods come and go.
func departures(of []node, lists []*workload, by []contender) error {
	for _, w := range lists {
		results := make([][]moment, len(by))
		var all errgroup.Group
		all.SetLimit(runtime.NumCPU())
		for i := range by {
			all.Go(func() error {
				began := time.Now()
				results[i] = comeAndGo(of, w, firstSeed, by[i], times)
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
