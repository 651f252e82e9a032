// SPDX-License-Identifier: Apache-2.0

// Command edits writes the CDI edits of a simulated node's first GPU, as they are with
// the ordinary hooks of NVIDIA's toolkit, a process each: what the benchmark's
// comparison gives to its containers.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"

	"github.com/urfave/cli/v3"

	"github.com/gpushare/dra-driver-gpushare/cdi"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu/nvml"
	"github.com/gpushare/dra-driver-gpushare/tests/standins/sim"
)

func main() {
	command := &cli.Command{
		Name: "edits",
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "node-root", Required: true, Usage: "root `DIRECTORY` of the node"},
			&cli.StringFlag{Name: "driver-root", Required: true, Usage: "`DIRECTORY` of the driver on the node"},
			&cli.StringFlag{Name: "hook", Required: true, Usage: "`PATH` of nvidia-cdi-hook on the node"},
		},
		Action: run,
	}
	if err := command.Run(context.Background(), os.Args); err != nil {
		fmt.Fprintln(os.Stderr, "edits:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, c *cli.Command) error {
	root := c.String("driver-root")
	options := nvml.SourceOptions{
		HostRoot: c.String("node-root"), DriverRoot: root, SysFS: filepath.Join(c.String("node-root"), root, sim.SysDir),
	}
	machine, err := nvml.NewSource(options).Read(ctx)
	if err != nil {
		return err
	}
	base, err := cdi.NewBase(ctx, machine, cdi.BaseOptions{
		DriverRoot: options.Local(root), HostDriverRoot: root, HostHookPath: c.String("hook"),
	})
	if err != nil {
		return err
	}
	edits := base.Common()
	g, err := base.GPU(machine.GPUs[0].UUID)
	if err != nil {
		return err
	}
	edits.DeviceNodes = append(edits.DeviceNodes[:len(edits.DeviceNodes):len(edits.DeviceNodes)], g.DeviceNodes...)
	return json.NewEncoder(os.Stdout).Encode(edits)
}
