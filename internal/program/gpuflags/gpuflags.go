// SPDX-License-Identifier: Apache-2.0

// Package gpuflags is what the driver's programs that read a node's GPUs have in
// common: the flags that say where the GPUs are. It is apart from package program
// because it links NVML.
package gpuflags

import (
	"errors"

	"github.com/urfave/cli/v3"

	"github.com/gpushare/dra-driver-gpushare/internal/program"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu/nvml"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/mps"
)

// Flags are the flags of every program that reads the node's GPUs. They have one
// name everywhere, so that one ConfigMap serves all programs.
func Flags() []cli.Flag {
	env := cli.EnvVars
	return []cli.Flag{
		&cli.StringFlag{Name: "node-name", Sources: env("NODE_NAME"),
			Usage: "name of this node's Node object"},
		&cli.StringFlag{Name: "host-root", Sources: env("HOST_ROOT"), Value: "/",
			Usage: "where this process sees the host's root directory"},
		&cli.StringFlag{Name: "driver-root", Sources: env("NVIDIA_DRIVER_ROOT"), Value: "/",
			Usage: "host directory with the NVIDIA driver"},
		&cli.StringFlag{Name: "nvml-library", Sources: env("NVIDIA_NVML_LIBRARY"),
			DefaultText: "found in the driver root", Usage: "libnvidia-ml.so.1 on the host"},
		&cli.StringSliceFlag{Name: "library-search-path", Sources: env("NVIDIA_LIBRARY_SEARCH_PATHS"),
			Usage: "further directories with the driver's libraries, below the driver root, comma-separated; on NixOS " +
				"/run/opengl-driver/lib"},
		&cli.DurationFlag{Name: "nvml-timeout", Sources: env("NVML_TIMEOUT"), Value: nvml.DefaultCallTimeout,
			Usage: "how long one NVML call may take; a slower GPU is left out until the call returns"},
		&cli.StringFlag{Name: "sysfs-root", Sources: env("SYSFS_ROOT"), Value: "/sys",
			Usage: "where the program sees the sysfs"},
		program.LogFlag(),
	}
}

// MPSDir is the flag of the directory that gpu-kubelet-plugin and gpu-mps-supervisor share.
func MPSDir() cli.Flag {
	return &cli.StringFlag{Name: "mps-dir", Sources: cli.EnvVars("MPS_DIR"), Value: mps.DefaultHostDir,
		Usage: "directory on the host that plugin, supervisor and MPS clients share; the mounts have to follow"}
}

// NodeName is the node's name, without which no program works for a node. The flag is not a required one:
// the commands beside that work, such as given in a user's pod, would require it, too.
func NodeName(c *cli.Command) (string, error) {
	name := c.String("node-name")
	if name == "" {
		return "", errors.New("the name of this node's Node object is not known: set NODE_NAME, or --node-name")
	}
	return name, nil
}

// Source is what Flags say.
func Source(c *cli.Command) nvml.SourceOptions {
	return nvml.SourceOptions{
		HostRoot:           c.String("host-root"),
		DriverRoot:         c.String("driver-root"),
		LibraryPath:        c.String("nvml-library"),
		LibrarySearchPaths: c.StringSlice("library-search-path"),
		CallTimeout:        c.Duration("nvml-timeout"),
		SysFS:              c.String("sysfs-root"),
	}
}
