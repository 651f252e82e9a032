// Command gpu-compat-controller does for the whole cluster what users of ACK's GPU
// scheduling rely on: it labels nodes by their cards and keeps a DeviceClass for
// each card model.
package main

import (
	"os"

	"github.com/gpushare/dra-driver-gpushare/internal/program"
)

func main() { os.Exit(program.Main(command())) }
