// SPDX-License-Identifier: Apache-2.0

// Command gpubundle is the program in the archive of `make gpu-bundle`: it brings up a real cluster on a machine with
// NVIDIA GPUs, installs the driver as it is shipped, runs tests/suites/hardware on it, and writes a report. What it has
// started it ends, and what it has changed on the machine it puts back.
//
// It is started by ./run, which unpacks what it needs (run.sh). docs/hardware.md is about both.
package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/urfave/cli/v3"

	"github.com/gpushare/dra-driver-gpushare/deployments/hardware/report"
)

// Exit codes, beside 0.
const (
	exitFailed  = 1 // a check has failed, or the run broke off
	exitRefused = 2 // the machine cannot be used as it is: nothing was changed
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	err := command().Run(ctx, os.Args)
	if err == nil {
		return
	}
	fmt.Fprintln(os.Stderr, "gpu-bundle:", err)
	var refused refusedError
	if errors.As(err, &refused) {
		os.Exit(exitRefused)
	}
	os.Exit(exitFailed)
}

// options are what the command line says.
type options struct {
	// payload is the directory that ./run has unpacked.
	payload, page, logs string
	limit               time.Duration
	// driverRoot is where the NVIDIA driver is looked for; empty for everywhere.
	driverRoot string
	// simulated is the driver root of a simulated node.
	simulated string
	only      []string
	// mayChangeMIG is the index or UUID of a GPU whose owner allows its MIG mode to be changed; empty for none.
	mayChangeMIG string
}

func command() *cli.Command {
	var o options
	path := func(name, usage, value string, to *string) *cli.StringFlag {
		return &cli.StringFlag{Name: name, Usage: usage, Value: value, Destination: to}
	}
	return &cli.Command{
		Name:  "run",
		Usage: "try the GPU driver on this machine's GPUs, in a cluster of its own",
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "payload", Hidden: true, Destination: &o.payload},
			path("report", "`FILE` for the report, in Markdown", "gpu-report.md", &o.page),
			path("logs", "`FILE` for the cluster's logs, as a tar.gz; none by default", "", &o.logs),
			&cli.DurationFlag{Name: "limit", Value: 8 * time.Minute, Destination: &o.limit,
				Usage: "`TIME` after which nothing new is tried, with half a minute left to clean up"},
			path("driver-root", "`DIRECTORY` that the NVIDIA driver is installed in (default: found)", "", &o.driverRoot),
			&cli.StringSliceFlag{Name: "only", Destination: &o.only,
				Usage: "try this `MODE` only, as the report calls it; may be repeated"},
			&cli.StringFlag{Name: "may-change-mig", Destination: &o.mayChangeMIG,
				Usage: "cut the `GPU` with this index or UUID into MIG instances, and put its mode back"},
			path("simulated", "driver root `DIRECTORY` of a simulated node, to try the bundle without a GPU", "", &o.simulated),
		},
		Action: func(ctx context.Context, c *cli.Command) error {
			if c.Args().Present() {
				return fmt.Errorf("unknown argument %q: see ./run --help", c.Args().First())
			}
			return (&bundle{options: o.absolute()}).run(ctx)
		},
		Commands: []*cli.Command{{
			Name:      "report",
			Usage:     "make a page of what tests/suites/hardware have put into GPUSHARE_REPORT, on a cluster that is there",
			ArgsUsage: "FILE",
			Action: func(_ context.Context, c *cli.Command) error {
				r, begun, err := report.In(c.Args().First()).Load()
				if err == nil && !begun {
					err = fmt.Errorf("there is no report %q: the tests have not begun", c.Args().First())
				}
				if err != nil {
					return err
				}
				fmt.Print(r.Markdown())
				return failures(&r)
			},
		}, {
			Name:  "down",
			Usage: "take down what a run has left that was killed",
			Action: func(ctx context.Context, _ *cli.Command) error {
				told, err := (&bundle{options: o.absolute()}).cleanUp(ctx)
				progress(strings.Join(told, "\n"))
				return err
			},
		}},
	}
}

// absolute makes paths independent of the working directory.
func (o options) absolute() options {
	for _, path := range []*string{&o.payload, &o.page, &o.logs, &o.driverRoot, &o.simulated} {
		if absolute, err := filepath.Abs(*path); err == nil && *path != "" {
			*path = absolute
		}
	}
	o.driverRoot = cmp.Or(o.simulated, o.driverRoot)
	return o
}

// failures is an error if checks have failed.
func failures(r *report.Report) error {
	if n := r.Count(report.Failed); n > 0 {
		return fmt.Errorf("%d checks have failed", n)
	}
	return nil
}

// refusedError says why the machine cannot be used: a line for each reason.
type refusedError []string

func (e refusedError) Error() string {
	text := "this machine cannot be used as it is; nothing was changed"
	for _, problem := range e {
		text += "\n- " + problem
	}
	return text
}
