// SPDX-License-Identifier: Apache-2.0

// Command gpu-mps-supervisor keeps one MPS control daemon running for each of
// the node's GPUs, apart from the plugin, so that an upgrade of the plugin ends
// no client.
package main

import (
	"os"

	"github.com/gpushare/dra-driver-gpushare/internal/program"
)

func main() { os.Exit(program.Main(command())) }
