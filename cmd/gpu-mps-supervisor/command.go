// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/urfave/cli/v3"
	"k8s.io/utils/clock"

	"github.com/gpushare/dra-driver-gpushare/cmd/gpu-mps-supervisor/flags"
	"github.com/gpushare/dra-driver-gpushare/internal/program"
	"github.com/gpushare/dra-driver-gpushare/internal/program/gpuflags"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu/nvml"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/mps"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/mps/control"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/mps/supervisor"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/podcgroup"
)

func command() *cli.Command {
	return &cli.Command{
		Name:   "gpu-mps-supervisor",
		Usage:  "keep an MPS control daemon running for each of this node's NVIDIA GPUs, or one for all",
		Flags:  flags.Flags(),
		Action: run,
	}
}

func run(ctx context.Context, c *cli.Command) error {
	if c.Args().Present() {
		return fmt.Errorf("unexpected argument %q: there are only flags", c.Args().First())
	}
	if err := program.SetUpLogging(ctx, c.Int("v")); err != nil {
		return err
	}
	nodeName, err := gpuflags.NodeName(c)
	if err != nil {
		return err
	}
	client, err := newClient(ctx, c.String("kubeconfig"))
	if err != nil {
		return err
	}
	err = supervise(ctx, c)
	if err != nil && client != nil {
		err = errors.Join(err, report(ctx, client, nodeName, err))
	}
	return err
}

// describe is what the kernel says of a client of a daemon; of one that has ended only its number is known.
func describe(pid int) mps.Client {
	const processes = podcgroup.Processes("/proc")
	c := mps.Client{PID: pid}
	c.Program, _ = processes.Program(pid)
	if places, err := processes.Places(pid); err == nil && len(places) > 0 {
		c.Pod = places[0].Pod
	}
	return c
}

func supervise(ctx context.Context, c *cli.Command) error {
	where := gpuflags.Source(c)
	gpus := nvml.NewSource(where)
	dir := mps.Dir(c.String("mps-dir"))
	program := func(dir mps.Dir) *control.Program {
		return &control.Program{
			Root:         where.Local(where.DriverRoot),
			Path:         c.String("mps-control"),
			LibraryPaths: where.LibrarySearchPaths,
			Dir:          dir,
		}
	}
	return supervisor.Run(ctx, supervisor.Options{
		Dir: dir,
		Read: func(ctx context.Context) (*gpu.Machine, error) {
			machine, err := gpus.Read(ctx)
			if errors.Is(err, nvml.ErrReplaced) {
				err = fmt.Errorf("%w: %w", supervisor.ErrStale, err)
			}
			return machine, err
		},
		Device:      func(ctx context.Context, uuid string) (supervisor.Device, error) { return gpus.Device(ctx, uuid) },
		Control:     program(dir),
		NodeControl: program(dir.OfNode()),
		Describe:    describe,
		KernelLog:   control.KernelLog,
		Clock:       clock.RealClock{},
	})
}
