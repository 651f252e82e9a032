package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/urfave/cli/v3"
	"k8s.io/utils/clock"

	"github.com/gpushare/dra-driver-gpushare/internal/program"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu/source"
	"github.com/gpushare/dra-driver-gpushare/pkg/mps"
	"github.com/gpushare/dra-driver-gpushare/pkg/mps/control"
	"github.com/gpushare/dra-driver-gpushare/pkg/mps/supervisor"
)

// command has the plugin's names for what both need, so that one ConfigMap
// serves both.
func command() *cli.Command {
	env := cli.EnvVars
	return &cli.Command{
		Name:  "gpu-mps-supervisor",
		Usage: "keep an MPS control daemon running for each of this node's NVIDIA cards",
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "node-name", Sources: env("NODE_NAME"), Required: true, Usage: "name of this node's Node object"},
			&cli.StringFlag{Name: "kubeconfig", Sources: env("KUBECONFIG"), Usage: "kubeconfig file, for Events; by default the pod's service account is used, and outside of a pod none"},
			&cli.StringFlag{Name: "mps-dir", Sources: env("MPS_DIR"), Value: mps.DefaultHostDir, Usage: "directory on the host that the plugin and the clients find the daemons in; it has to be mounted here under the same path"},
			&cli.StringFlag{Name: "mps-control", Sources: env("NVIDIA_MPS_CONTROL"), Value: control.DefaultPath, Usage: "the program nvidia-cuda-mps-control, below the driver root"},
			&cli.StringFlag{Name: "host-root", Sources: env("HOST_ROOT"), Value: "/", Usage: "where this process sees the host's root directory"},
			&cli.StringFlag{Name: "driver-root", Sources: env("NVIDIA_DRIVER_ROOT"), Value: "/", Usage: "directory that the NVIDIA driver is installed in, on the host; the daemons run with it as their root directory"},
			&cli.StringFlag{Name: "nvml-library", Sources: env("NVIDIA_NVML_LIBRARY"), Usage: "path of libnvidia-ml.so.1 on the host; by default it is looked for in the driver root"},
			&cli.StringSliceFlag{Name: "library-search-path", Sources: env("NVIDIA_LIBRARY_SEARCH_PATHS"), Usage: "further directory, below the driver root, with the driver's libraries (repeatable, or comma-separated)"},
			&cli.DurationFlag{Name: "nvml-timeout", Sources: env("NVML_TIMEOUT"), Usage: "how long a single NVML call may take; 0 for the default"},
			&cli.StringFlag{Name: "simulated-machine", Sources: env("GPU_SIMULATED_MACHINE"), Usage: "simulate the cards of this machine file, on the host, instead of reading real ones; for demonstrations and tests"},
			&cli.IntFlag{Name: "v", Sources: env("LOG_VERBOSITY"), Value: 2, Usage: "log verbosity"},
		},
		Action: run,
	}
}

func run(ctx context.Context, c *cli.Command) error {
	if c.Args().Present() {
		return fmt.Errorf("unexpected argument %q: there are only flags", c.Args().First())
	}
	if err := program.SetUpLogging(c.Int("v")); err != nil {
		return err
	}
	client, err := newClient(ctx, c.String("kubeconfig"))
	if err != nil {
		return err
	}
	err = supervise(ctx, c)
	if err != nil && client != nil {
		err = errors.Join(err, report(ctx, client, c.String("node-name"), err))
	}
	return err
}

func supervise(ctx context.Context, c *cli.Command) error {
	where := source.Options{
		HostRoot:         c.String("host-root"),
		DriverRoot:       c.String("driver-root"),
		LibraryPath:      c.String("nvml-library"),
		CallTimeout:      c.Duration("nvml-timeout"),
		SimulatedMachine: c.String("simulated-machine"),
		NodeName:         c.String("node-name"),
	}
	cards := source.New(where)
	dir := mps.Dir(c.String("mps-dir"))
	return supervisor.Run(ctx, supervisor.Options{
		Dir: dir,
		Read: func(ctx context.Context) (*gpu.Machine, error) {
			machine, _, err := cards.Read(ctx)
			return machine, err
		},
		Control: &control.Program{
			Root:         where.Local(where.DriverRoot),
			Path:         c.String("mps-control"),
			LibraryPaths: c.StringSlice("library-search-path"),
			Dir:          dir,
		},
		Clock: clock.RealClock{},
	})
}
