// SPDX-License-Identifier: Apache-2.0

// Command gpu-compat-controller does for the whole cluster what users of ACK's GPU
// scheduling rely on: it labels nodes by their GPUs, keeps a DeviceClass for each
// GPU model, and shows tools made for ACK what they look for.
package main

import (
	"os"

	"github.com/gpushare/dra-driver-gpushare/internal/program"
)

func main() { os.Exit(program.Main(command())) }
