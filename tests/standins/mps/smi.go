// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
	"path/filepath"
)

// stateDir is sim.StateDir of the driver root, which is this program's root. Package sim needs cgo.
const stateDir = "/state"

// smi stands in for nvidia-smi, which the plugin runs for time slices alone: it notes the number of each GPU's in the
// driver's state.
func smi(args []string) error {
	if len(args) != 5 || args[0] != "compute-policy" || args[1] != "-i" || args[3] != "--set-timeslice" {
		return fmt.Errorf("this node's NVIDIA driver is simulated: it knows no %q", args)
	}
	return os.WriteFile(filepath.Join(stateDir, args[2]+".timeslice"), []byte(args[4]), 0o644)
}
