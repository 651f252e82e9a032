// SPDX-License-Identifier: Apache-2.0

package mps

import (
	"fmt"
	"path/filepath"

	"github.com/gpushare/dra-driver-gpushare/pkg/atomicfile"
)

// Forget is for the supervisor: it removes the GPU's status, which readers take for a daemon
// that is not there. It works where SetStatus does not, as on a full file system.
func (d Dir) Forget(uuid string) error {
	if err := atomicfile.Remove(d.statusFile(uuid)); err != nil {
		return fmt.Errorf("forget the status of the GPU's MPS control daemon: %w", err)
	}
	return nil
}

// forgetAll removes the statuses of an earlier supervisor. The GPUs' directories stay:
// containers may have a pipe directory mounted, and would not see another one in its place.
func (d Dir) forgetAll() error {
	statuses, err := filepath.Glob(d.statusFile("*"))
	if err != nil {
		return fmt.Errorf("look for statuses of an earlier gpu-mps-supervisor: %w", err)
	}
	for _, path := range statuses {
		if err := atomicfile.Remove(path); err != nil {
			return fmt.Errorf("forget the status of an earlier gpu-mps-supervisor: %w", err)
		}
	}
	return nil
}
