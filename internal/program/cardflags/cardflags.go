// SPDX-License-Identifier: Apache-2.0

// Package cardflags is what the driver's programs that read a node's cards have in
// common: the flags that say where the cards are. It is apart from package program
// because it links NVML.
package cardflags

import (
	"github.com/urfave/cli/v3"

	"github.com/gpushare/dra-driver-gpushare/internal/program"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu/nvml"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu/source"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/mps"
)

// Flags are the flags of every program that reads the node's cards. They have one
// name everywhere, so that one ConfigMap serves all programs.
func Flags() []cli.Flag {
	env := cli.EnvVars
	return []cli.Flag{
		&cli.StringFlag{Name: "node-name", Sources: env("NODE_NAME"), Required: true,
			Usage: "name of this node's Node object"},
		&cli.StringFlag{Name: "host-root", Sources: env("HOST_ROOT"), Value: "/",
			Usage: "where this process sees the host's root directory"},
		&cli.StringFlag{Name: "driver-root", Sources: env("NVIDIA_DRIVER_ROOT"), Value: "/",
			Usage: "directory on the host that has the NVIDIA driver"},
		&cli.StringFlag{Name: "nvml-library", Sources: env("NVIDIA_NVML_LIBRARY"),
			DefaultText: "found in the driver root", Usage: "libnvidia-ml.so.1 on the host"},
		&cli.StringSliceFlag{Name: "library-search-path", Sources: env("NVIDIA_LIBRARY_SEARCH_PATHS"),
			Usage: "further directories with the driver's libraries, below the driver root (repeatable, or comma-separated) " +
				"(docs/reference.md#nvidia_library_search_paths)"},
		&cli.DurationFlag{Name: "nvml-timeout", Sources: env("NVML_TIMEOUT"), Value: nvml.DefaultCallTimeout,
			Usage: "how long one NVML call may take; 0 for the default (docs/reference.md#nvml_timeout)"},
		&cli.StringFlag{Name: "sysfs-root", Sources: env("SYSFS_ROOT"), Value: "/sys",
			Usage: "where this process sees the sysfs that has the GPUs' PCI devices"},
		program.LogFlag(),
	}
}

// MPSDir is the flag of the directory that gpu-kubelet-plugin and gpu-mps-supervisor share.
func MPSDir() cli.Flag {
	return &cli.StringFlag{Name: "mps-dir", Sources: cli.EnvVars("MPS_DIR"), Value: mps.DefaultHostDir,
		Usage: "directory on the host that gpu-kubelet-plugin and gpu-mps-supervisor share, and in which clients find the " +
			"daemons; the mounts of both have to follow, under the same path"}
}

// Source is what Flags say.
func Source(c *cli.Command) source.Options {
	return source.Options{
		HostRoot:    c.String("host-root"),
		DriverRoot:  c.String("driver-root"),
		LibraryPath: c.String("nvml-library"),
		CallTimeout: c.Duration("nvml-timeout"),
		SysFS:       c.String("sysfs-root"),
	}
}
