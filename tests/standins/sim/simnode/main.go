// SPDX-License-Identifier: Apache-2.0

// Command simnode makes a directory the driver root of a simulated node.
//
//	go run ./tests/standins/sim/simnode --machine demo/machines/v100x4.yaml --nvml LIBRARY --root DIR --node NAME
//
// LIBRARY is the NVML library of simulated nodes (tests/standins/nvmllib/build.sh makes it). With
// --mps-control PROGRAM the driver has an MPS control program: a stand-in
// (tests/standins/mps), linked statically. With --mount-state what the driver is told at run time can be
// written where programs see the node read-only; see sim.MountState.
//
// It needs the right to make device nodes. It may be repeated, also with
// another machine file; see sim.Spec.WriteRoot.
//
//	simnode fault --root DIR gpu-2 xid=79
//	simnode fault --root DIR driver-upgrade=580.95.05
//	simnode fault --root DIR driver-reload
//
// changes the node while programs use it; see sim.Spec.Inject.
//
//	simnode mig --root DIR
//
// makes and destroys the MIG instances that programs ask the node's driver for, until it is told to end; see
// sim.Partitioning. Without it such calls do not return.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/urfave/cli/v3"

	"github.com/gpushare/dra-driver-gpushare/tests/standins/sim"
)

func main() {
	if err := command().Run(context.Background(), os.Args); err != nil {
		fmt.Fprintln(os.Stderr, "simnode:", err)
		os.Exit(1)
	}
}

func command() *cli.Command {
	return &cli.Command{
		Name:  "simnode",
		Usage: "write the driver root of a simulated node",
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "machine", Usage: "machine file, e.g. demo/machines/v100x4.yaml"},
			&cli.StringFlag{Name: "root", Usage: "directory to write: empty, or the root of a simulated node"},
			&cli.StringFlag{Name: "node", Usage: "name of the node, which its GPUs' UUIDs are derived from"},
			&cli.StringFlag{Name: "nvml", Usage: "library to install as the driver's NVML"},
			&cli.StringFlag{Name: "smi", Usage: "program to install as the driver's nvidia-smi"},
			&cli.StringFlag{Name: "mps-control", Usage: "program to install as the driver's nvidia-cuda-mps-control"},
			&cli.BoolFlag{Name: "mount-state", Usage: "make the directory of what the driver is told a mount of its own"},
		},
		Action: write,
		Commands: []*cli.Command{{
			Name:      "fault",
			Usage:     "break a GPU of a simulated node, heal it, or replace or reload the node's driver",
			ArgsUsage: "GPU " + sim.Faults + " …, or driver-upgrade=VERSION, or driver-reload",
			Flags: []cli.Flag{
				&cli.StringFlag{Name: "root", Required: true, Usage: "driver root of the node"},
			},
			Action: fault,
		}, {
			Name:  "mig",
			Usage: "make and destroy the MIG instances that programs ask a simulated node's driver for, until told to end",
			Flags: []cli.Flag{
				&cli.StringFlag{Name: "root", Required: true, Usage: "driver root of the node"},
				&cli.DurationFlag{Name: "delay", Usage: "how long each call takes"},
			},
			Action: func(ctx context.Context, c *cli.Command) error {
				return sim.Partitioning{Delay: c.Duration("delay")}.ServeMIG(ctx, c.String("root"))
			},
		}},
	}
}

func write(_ context.Context, c *cli.Command) error {
	if c.Args().Present() {
		return errors.New("takes no arguments, only flags")
	}
	for _, flag := range []string{"machine", "root", "nvml"} {
		if c.String(flag) == "" {
			return fmt.Errorf("--%s is missing", flag)
		}
	}
	spec, err := sim.Load(c.String("machine"))
	if err != nil {
		return err
	}
	var parts []sim.Part
	for name, path := range map[string]string{
		sim.NVMLLibrary: c.String("nvml"), "nvidia-cuda-mps-control": c.String("mps-control"),
		"nvidia-smi": c.String("smi"),
	} {
		if path == "" {
			continue
		}
		content, err := os.ReadFile(path)
		if err != nil {
			return fmt.Errorf("read what to install as %s: %w", name, err)
		}
		parts = append(parts, sim.Part{Name: name, Content: content})
	}
	if err := spec.ForNode(c.String("node")).WriteRoot(c.String("root"), parts...); err != nil {
		return err
	}
	if c.Bool("mount-state") {
		return sim.MountState(c.String("root"))
	}
	return nil
}

func fault(_ context.Context, c *cli.Command) error {
	what := c.Args().Slice()
	if len(what) == 1 {
		if version, ok := strings.CutPrefix(what[0], "driver-upgrade="); ok {
			return sim.UpgradeDriver(c.String("root"), version)
		}
		if what[0] == "driver-reload" {
			return sim.ReloadDriver(c.String("root"))
		}
	}
	if len(what) < 2 {
		return fmt.Errorf("want a GPU and what happens to it (%s), or driver-upgrade=VERSION, or driver-reload, got %q",
			sim.Faults, what)
	}
	return sim.Change(c.String("root"), func(s *sim.Spec) error {
		g, err := s.Find(what[0])
		if err != nil {
			return err
		}
		for _, f := range what[1:] {
			if err := s.Inject(g, f); err != nil {
				return err
			}
		}
		return nil
	})
}
