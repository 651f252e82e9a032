// SPDX-License-Identifier: Apache-2.0

// Command simnode makes a directory the driver root of a simulated node.
//
//	go run ./tests/simnode --machine demo/machines/v100x4.yaml --root DIR --node NAME
//
// With --mps-control PROGRAM the driver has an MPS control program: a stand-in
// (tests/mpsstandin), linked statically.
//
// It needs the right to make device nodes. It may be repeated, also with
// another machine file; see sim.Spec.WriteRoot.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/urfave/cli/v3"

	"github.com/gpushare/dra-driver-gpushare/pkg/gpu/sim"
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
			&cli.StringFlag{Name: "machine", Usage: "machine file, e.g. demo/machines/v100x4.yaml", Required: true},
			&cli.StringFlag{Name: "root", Usage: "directory to write: empty, or the root of a simulated node", Required: true},
			&cli.StringFlag{Name: "node", Usage: "name of the node, which its GPUs' UUIDs are derived from"},
			&cli.StringFlag{Name: "mps-control", Usage: "program to install as the driver's nvidia-cuda-mps-control"},
		},
		Action: func(_ context.Context, c *cli.Command) error {
			if c.Args().Present() {
				return errors.New("takes no arguments, only flags")
			}
			spec, err := sim.Load(c.String("machine"))
			if err != nil {
				return err
			}
			programs, err := programs(c.String("mps-control"))
			if err != nil {
				return err
			}
			return spec.ForNode(c.String("node")).WriteRoot(c.String("root"), programs...)
		},
	}
}

func programs(mpsControl string) ([]sim.Program, error) {
	if mpsControl == "" {
		return nil, nil
	}
	content, err := os.ReadFile(mpsControl)
	if err != nil {
		return nil, fmt.Errorf("read the MPS control program: %w", err)
	}
	return []sim.Program{{Name: "nvidia-cuda-mps-control", Content: content}}, nil
}
