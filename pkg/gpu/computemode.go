// SPDX-License-Identifier: Apache-2.0

package gpu

import (
	"errors"
	"fmt"
	"slices"
)

// ComputeMode is who may make contexts on a GPU, as NVML numbers it
// (nvmlComputeMode_t). The driver keeps it until the node or the driver restarts.
type ComputeMode int

// Compute modes. In ComputeExclusiveProcess one process has contexts at a time, which is
// the MPS server where there is one: its clients come in through it.
const (
	ComputeDefault          ComputeMode = 0
	ComputeExclusiveThread  ComputeMode = 1
	ComputeProhibited       ComputeMode = 2
	ComputeExclusiveProcess ComputeMode = 3
)

// ErrComputeModeFixed is that the compute mode of a GPU cannot be set by this process, as
// in a virtual machine with a vGPU.
var ErrComputeModeFixed = errors.New("the driver lets nobody here set the GPU's compute mode")

// ErrNoTimeSlices is that a GPU, or its driver, lets nobody choose for how long a process computes.
var ErrNoTimeSlices = errors.New("no time slice can be set")

// computeModes are the modes' names, as nvidia-smi --compute-mode takes them.
var computeModes = []string{"DEFAULT", "EXCLUSIVE_THREAD", "PROHIBITED", "EXCLUSIVE_PROCESS"}

func (m ComputeMode) String() string {
	if m < 0 || int(m) >= len(computeModes) {
		return fmt.Sprintf("compute mode %d", int(m))
	}
	return computeModes[m]
}

// MarshalText writes the mode's name.
func (m ComputeMode) MarshalText() ([]byte, error) { return []byte(m.String()), nil }

// UnmarshalText reads a name that MarshalText has written.
func (m *ComputeMode) UnmarshalText(text []byte) error {
	at := slices.Index(computeModes, string(text))
	if at < 0 {
		return fmt.Errorf("unknown compute mode %q: want one of %q", text, computeModes)
	}
	*m = ComputeMode(at)
	return nil
}
