// SPDX-License-Identifier: Apache-2.0

// Command gpu-kubelet-plugin publishes a node's NVIDIA GPUs through Dynamic
// Resource Allocation and prepares the claims that are allocated from them.
package main

import (
	"os"

	"github.com/gpushare/dra-driver-gpushare/internal/program"
)

func main() { os.Exit(program.Main(command())) }
