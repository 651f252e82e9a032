// SPDX-License-Identifier: Apache-2.0

// Package flags has the flags of gpu-mps-supervisor, apart from the program, so that
// docs/reference.md is made of them: see internal/docs/generate.
package flags

import (
	"github.com/urfave/cli/v3"

	"github.com/gpushare/dra-driver-gpushare/internal/program/gpuflags"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/mps/control"
)

// Flags are the program's. docs/reference.md has their words.
func Flags() []cli.Flag {
	env := cli.EnvVars
	return append(gpuflags.Flags(),
		&cli.StringFlag{Name: "kubeconfig", Sources: env("KUBECONFIG"),
			Usage: "kubeconfig file, for Events; by default the pod's service account is used, and outside of a pod none"},
		gpuflags.MPSDir(),
		&cli.StringFlag{Name: "mps-control", Sources: env("NVIDIA_MPS_CONTROL"), Value: control.DefaultPath,
			Usage: "path of nvidia-cuda-mps-control, below the driver root"},
	)
}
