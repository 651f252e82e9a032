// SPDX-License-Identifier: Apache-2.0

// Command placement places the pods of Alibaba's published GPU trace on its nodes, by the policies of the paper on it
// (FGD, USENIX ATC '23), by those of the stock scheduler, and by the driver's score of nodes. It takes no cluster, but
// to have the stock scheduler itself place them: tests/bench/nodes.sh makes one.
package main

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"slices"
	"time"

	"github.com/urfave/cli/v3"
	"golang.org/x/sync/errgroup"

	"github.com/gpushare/dra-driver-gpushare/internal/program"
	"github.com/gpushare/dra-driver-gpushare/pkg/placement/score"
	"github.com/gpushare/dra-driver-gpushare/tests/bench/internal/report"
)

func main() { os.Exit(program.Main(command())) }

// traceDir is where the trace lies beside a checkout.
const traceDir = "../shared/data/openb"

// firstSeed is the first of the paper's seeds.
const firstSeed = 42

func command() *cli.Command {
	return &cli.Command{
		Name:  "placement",
		Usage: "place the pods of a trace by several policies, and print a table of what became of the GPUs",
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "trace", Value: traceDir, Usage: "`DIRECTORY` with the node list and the pod lists of the " +
				"trace, and the published results"},
			&cli.StringSliceFlag{Name: "workload", Usage: "`NAME` of a pod list",
				Value: []string{"default", "gpushare100", "gpuspec33", "multigpu50"}},
			&cli.StringSliceFlag{Name: "only", Usage: "`NAME` of a policy, without others"},
			&cli.StringFlag{Name: "kubeconfig", Usage: "kubeconfig `FILE` in the directory of a cluster, whose scheduler " +
				"places the pods of the first workload and seed, as the one policy of --only"},
			&cli.StringFlag{Name: "controller", Usage: "gpu-compat-controller, a `FILE`; needed with --kubeconfig"},
			&cli.IntFlag{Name: "every", Value: 1, Usage: "take every `NUMBER`th node of the trace"},
			&cli.IntFlag{Name: "seeds", Value: 5, Usage: "`NUMBER` of seeds, from 42 on"},
		},
		Action: run,
	}
}

// contender is a policy, and whether nodes with few CPUs are tainted.
type contender struct {
	name  string
	taint bool
	// option means that the stock scheduler follows the policy through the option best-node.
	option bool
	// gate means that pods wait at a scheduling gate for their nomination. In the simulation, nominations always come
	// in time.
	gate bool
	make func(w *workload) policy
	// paper is the name of the policy in the published results.
	paper string
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
	return slices.DeleteFunc(contenders(), func(c contender) bool {
		return c.gate && len(names) == 0 || len(names) > 0 && !slices.Contains(names, c.name)
	})
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
	by := chosen(c.StringSlice("only"))
	if len(by) == 0 {
		return fmt.Errorf("--only %v: there is no such policy", c.StringSlice("only"))
	}
	fmt.Printf("Taken %s.\n", report.Machine())
	if kubeconfig := c.String("kubeconfig"); kubeconfig != "" {
		return throughScheduler(ctx, kubeconfig, c.String("controller"), of, lists[0], by[0])
	}
	return inflation(of, lists, by, c.Int("seeds"), paper)
}

// every takes every nth of nodes.
func every(of []node, nth int) []node {
	var out []node
	for i := 0; i < len(of); i += nth {
		out = append(out, of[i])
	}
	return out
}

// inflation prints what becomes of the arrivals of each workload by each policy.
func inflation(of []node, lists []*workload, by []contender, seeds int, paper map[string]float64) error {
	table := report.Table{Head: []string{"policy"}}
	for _, w := range lists {
		table.Head = append(table.Head, w.name)
	}
	for _, policy := range by {
		for _, w := range lists {
			results := make([]result, seeds)
			err := eachOf(seeds, policy.name+", "+w.name, func(i int) (err error) {
				results[i], err = simulate(of, w, firstSeed+uint64(i), policy)
				return err
			})
			if err != nil {
				return err
			}
			var mean result
			published, n := 0.0, float64(seeds)
			for i, r := range results {
				mean.allocated += r.allocated / n
				mean.fragments += r.fragments / n
				mean.large += r.large / n
				published += paper[publishedAs(w.name, policy.paper, firstSeed+i)] / n
			}
			cell := mean.String()
			if policy.paper != "" {
				cell += fmt.Sprintf("; paper %.2f", published)
			}
			table.Set(policy.name, w.name, cell)
		}
	}
	return table.Write(os.Stdout)
}

func (r result) String() string {
	return fmt.Sprintf("%.2f (%.1f), %.0f %%", r.allocated, r.fragments, r.large)
}

// eachOf runs f for 0 to n-1, on all processors, and returns how long that took.
func eachOf(n int, name string, f func(i int) error) error {
	began := time.Now()
	var all errgroup.Group
	all.SetLimit(runtime.NumCPU())
	for i := range n {
		all.Go(func() error { return f(i) })
	}
	err := all.Wait()
	fmt.Fprintf(os.Stderr, "placement: %s took %s\n", name, time.Since(began).Round(time.Second))
	return err
}
