// SPDX-License-Identifier: Apache-2.0

// Package cardflags is what the driver's programs that read a node's cards have in
// common: the flags that say where the cards are. It is apart from package program
// because it links NVML.
package cardflags

import (
	"github.com/urfave/cli/v3"

	"github.com/gpushare/dra-driver-gpushare/internal/program"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu/source"
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
			Usage: "directory that the NVIDIA driver is installed in, on the host"},
		&cli.StringFlag{Name: "nvml-library", Sources: env("NVIDIA_NVML_LIBRARY"),
			Usage: "path of libnvidia-ml.so.1 on the host; by default it is looked for in the driver root"},
		&cli.StringSliceFlag{Name: "library-search-path", Sources: env("NVIDIA_LIBRARY_SEARCH_PATHS"),
			Usage: "further directory, below the driver root, with the driver's libraries (repeatable, or comma-separated)"},
		&cli.DurationFlag{Name: "nvml-timeout", Sources: env("NVML_TIMEOUT"),
			Usage: "how long a single NVML call may take; 0 for the default"},
		&cli.StringFlag{Name: "sysfs-root", Sources: env("SYSFS_ROOT"), Value: "/sys",
			Usage: "where this process sees the sysfs that has the GPUs' PCI devices"},
		program.LogFlag(),
	}
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
