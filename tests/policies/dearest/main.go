// SPDX-License-Identifier: Apache-2.0

// Command dearest looks for the pod that keeps the scheduler busy the longest: the dearest one that the
// admission policies, as they are shipped and as the API server evaluates them, let through. It climbs from
// random pods to dearer ones, on all machines of demo/machines, in all modes and in several states, and
// measures with the stock allocator. docs/internals/results has what was found.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"regexp"
	"runtime/debug"
	"slices"
	"strings"
	"syscall"
	"time"

	"k8s.io/klog/v2"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:])
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "dearest:", err)
		os.Exit(1)
	}
}

type options struct {
	minutes                  float64
	seed                     uint64
	out, pods, only, without string
	bound                    time.Duration
}

func run(ctx context.Context, args []string) error {
	var o options
	flags := flag.NewFlagSet("dearest", flag.ContinueOnError)
	flags.Float64Var(&o.minutes, "minutes", 5, "search this long")
	flags.Uint64Var(&o.seed, "seed", 1, "begin with this seed")
	flags.StringVar(&o.out, "out", "", "write the table to this file, and not to the standard output")
	flags.StringVar(&o.pods, "pods", "", "write the ten dearest pods to this file, as manifests")
	flags.StringVar(&o.only, "only", "", "only nodes whose names have one of these words, separated by commas")
	flags.StringVar(&o.without, "without", "", "leave out the policies of files whose names have one of these words")
	flags.DurationVar(&o.bound, "bound", 100*time.Millisecond, "fail if a pod takes longer on a node; 0 never fails")
	if err := flags.Parse(args); err != nil {
		return err
	}
	// The garbage is the allocator's; what collecting it costs here is not what is measured.
	debug.SetGCPercent(400)
	klog.LogToStderr(false)
	klog.SetOutput(io.Discard)
	s, err := o.search(ctx)
	if err != nil {
		return err
	}
	s.until = time.Now().Add(time.Duration(o.minutes * float64(time.Minute)))
	begin := time.Now()
	s.run(func(f *found) {
		if f.cost.ended || f.cost.took() > 20*time.Millisecond {
			fmt.Fprintf(os.Stderr, "dearest: %4.0f s, %6d tries: %s: %s; %s\n", time.Since(begin).Seconds(), s.tried,
				f.target,
				f.cost, f.candidate)
		}
	})
	return o.report(s)
}

// search is what the options describe.
func (o *options) search(ctx context.Context) (*search, error) {
	files, err := shippedPolicies("testdata/deployments")
	if err != nil {
		return nil, err
	}
	files = slices.DeleteFunc(files, func(f string) bool { return hasOne(f, listed(o.without)) })
	only := listed(o.only)
	all, err := targets(ctx, "testdata/machines", func(name string) bool { return len(only) == 0 || hasOne(name, only) })
	if err != nil {
		return nil, err
	}
	mentioned, err := labelsIn(files)
	if err != nil {
		return nil, err
	}
	if len(all) == 0 {
		return nil, fmt.Errorf("no node has a name with %s in it", o.only)
	}
	server, err := newServer(ctx, files, classesOf(all))
	if err != nil {
		return nil, err
	}
	return &search{most: most, server: server, limits: newLimits(), targets: all, labels: mentioned, seed: o.seed}, nil
}

// labelIn is a label of this driver.
var labelIn = regexp.MustCompile(`gpu[.]aliyun[.]com/[a-z-]+`)

// labelsIn are the labels that files mention.
func labelsIn(files []string) ([]string, error) {
	var all []string
	for _, file := range files {
		content, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		all = append(all, labelIn.FindAllString(string(content), -1)...)
	}
	slices.Sort(all)
	return slices.Compact(all), nil
}

func listed(list string) []string {
	return slices.DeleteFunc(strings.Split(list, ","), func(w string) bool { return w == "" })
}

func hasOne(text string, of []string) bool {
	return slices.ContainsFunc(of, func(w string) bool { return strings.Contains(text, w) })
}
