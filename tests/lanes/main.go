// SPDX-License-Identifier: Apache-2.0

// Command lanes runs the checks of the repository. Each is a lane of one table: what it proves, when it
// is run, the nodes of its cluster.
//
//	lanes [FLAG…] NAME…
//
// NAME is a lane, or test, test-all or release-checks, which are all lanes of that run: `lanes test-all`
// runs what `lanes test` does, and then the rest. `lanes list` prints the table, `lanes names NAME…` the
// names of lanes as JSON. Each lane's lines are shown as they come. At the end come the slowest tests and
// what each waited for, the skipped ones with their reasons, the lanes with their times, and what failed
// tests said.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"syscall"
	"time"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	os.Exit(run(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

// run returns the exit status: 0 where all passed, 1 where a check failed, 2 where nothing could be run.
func run(ctx context.Context, arguments []string, out, complaints io.Writer) int {
	runner := &Runner{Out: out}
	flags := flag.NewFlagSet("lanes", flag.ContinueOnError)
	flags.SetOutput(complaints)
	flags.StringVar(&runner.Only, "run", "", "run the tests that this `pattern` matches, as with go test")
	flags.BoolVar(&runner.Keep, "keep", false, "leave clusters up, and start on those that are")
	flags.DurationVar(&runner.Within, "within", 0, "do not run lanes that would make the whole take longer")
	turns := flags.Bool("in-turn", false, "also run the lane of release-checks that is in turn today, after those of test")
	if flags.Parse(arguments) != nil {
		return 2
	}
	if flags.NArg() == 1 && flags.Arg(0) == "list" {
		list(out, lanes())
		return 0
	}
	if flags.Arg(0) == "names" {
		return printNames(out, complaints, flags.Args()[1:])
	}
	chosen, err := choose(lanes(), flags.Args())
	if *turns {
		today, tomorrow := inTurn(lanes(), time.Now())
		fmt.Fprintf(out, "Of %s, lane %s is in turn today, %s tomorrow.\n", Release, today.Name, tomorrow.Name)
		chosen = insert(chosen, today)
	}
	if err == nil {
		runner.Checkout, err = os.Getwd()
	}
	if err == nil {
		kept := filepath.Join(runner.buildDir(), "lanes")
		// What an earlier run wrote is not of this one.
		for _, lane := range chosen {
			err = errors.Join(err, os.RemoveAll(filepath.Join(kept, lane.Name+".json")))
		}
		err = errors.Join(err, os.MkdirAll(kept, 0o755))
	}
	if err != nil {
		fmt.Fprintln(complaints, "lanes:", err)
		return 2
	}
	began := time.Now()
	outcomes := runner.Run(ctx, chosen)
	summarise(out, outcomes, time.Since(began))
	if slices.ContainsFunc(outcomes, func(o Outcome) bool { return o.Err != nil }) || ctx.Err() != nil {
		return 1
	}
	return 0
}

// printNames prints the names of the lanes that are named so, or are of these runs, for a matrix of a workflow.
func printNames(out, complaints io.Writer, named []string) int {
	chosen, err := choose(lanes(), named)
	if err != nil {
		fmt.Fprintln(complaints, "lanes:", err)
		return 2
	}
	names := make([]string, 0, len(chosen))
	for _, lane := range chosen {
		names = append(names, lane.Name)
	}
	if err := json.NewEncoder(out).Encode(names); err != nil {
		fmt.Fprintln(complaints, "lanes: print the names:", err)
		return 2
	}
	return 0
}

// choose gives the lanes of these names, in the order of the table.
func choose(all []Lane, names []string) ([]Lane, error) {
	if len(names) == 0 {
		return nil, fmt.Errorf("name a lane, or %s, %s or %s; `lanes list` prints all", EveryChange, Complete, Release)
	}
	runs := map[string][]When{string(EveryChange): {EveryChange}, string(Complete): {EveryChange, Complete},
		string(Release): {Release}}
	var chosen []Lane
	known := map[string]bool{}
	for _, lane := range all {
		if slices.ContainsFunc(names, func(name string) bool {
			if lane.Name != name && !slices.Contains(runs[name], lane.When) {
				return false
			}
			known[name] = true
			return true
		}) {
			chosen = append(chosen, lane)
		}
	}
	for _, name := range names {
		if !known[name] {
			return nil, fmt.Errorf("there is no lane %q: `lanes list` prints all", name)
		}
	}
	return chosen, nil
}

// inTurn are the lanes of Release that are in turn on the day of a time, and on the next: all of them within as many
// days as there are.
func inTurn(all []Lane, now time.Time) (today, tomorrow Lane) {
	all = slices.DeleteFunc(slices.Clone(all), func(l Lane) bool { return l.When != Release })
	day := int(now.Unix() / int64(24*time.Hour/time.Second))
	return all[day%len(all)], all[(day+1)%len(all)]
}

// insert adds a lane behind those of EveryChange, unless it is among the chosen. Behind all of them there would never
// be time for a long one.
func insert(chosen []Lane, lane Lane) []Lane {
	if slices.ContainsFunc(chosen, func(l Lane) bool { return l.Name == lane.Name }) {
		return chosen
	}
	at := 0
	for i := range chosen {
		if chosen[i].When == EveryChange {
			at = i + 1
		}
	}
	return slices.Insert(chosen, at, lane)
}

// list prints the table, in Markdown.
func list(to io.Writer, lanes []Lane) {
	fmt.Fprintf(to, "| Lane | Part of | About | Proves | On |\n|---|---|---|---|---|\n")
	for _, l := range lanes {
		fmt.Fprintf(to, "| `%s` | %s | %d min | %s | %s |\n", l.Name, l.When, int(l.Takes.Minutes()), l.Proves,
			l.note())
	}
}
