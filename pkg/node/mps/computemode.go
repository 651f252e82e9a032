// SPDX-License-Identifier: Apache-2.0

package mps

import (
	"fmt"
	"path/filepath"

	"github.com/gpushare/dra-driver-gpushare/pkg/atomicfile"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
)

// computeMode is the content of the file that remembers a GPU's compute mode.
type computeMode struct {
	Found gpu.ComputeMode `json:"found"`
}

// FoundMode is the compute mode that the GPU had before a supervisor changed it. It is known
// from then until it is put back.
func (d Dir) FoundMode(uuid string) (mode gpu.ComputeMode, known bool, err error) {
	m, there, err := read[computeMode](d.foundFile(uuid), "read the compute mode that the GPU had before")
	if there && err != nil {
		err = fmt.Errorf(`%w: write {"found":"DEFAULT"} to it`, err)
	}
	return m.Found, there && err == nil, err
}

// KeepFoundMode is for the supervisor, before it changes the GPU's compute mode.
func (d Dir) KeepFoundMode(uuid string, mode gpu.ComputeMode) error {
	return write(d.foundFile(uuid), "remember the GPU's compute mode", computeMode{Found: mode})
}

// ForgetFoundMode is for the supervisor, after it has put the GPU's compute mode back.
func (d Dir) ForgetFoundMode(uuid string) error {
	if err := atomicfile.Remove(d.foundFile(uuid)); err != nil {
		return fmt.Errorf("forget the compute mode that the GPU had before: %w", err)
	}
	return nil
}

// Changed is for the supervisor: it lists the GPUs whose compute mode is not put back.
func (d Dir) Changed() ([]string, error) {
	return gpusWith(d.foundFile("*"))
}

func (d Dir) foundFile(uuid string) string { return filepath.Join(d.gpu(uuid), "compute-mode.json") }
