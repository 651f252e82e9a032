// SPDX-License-Identifier: Apache-2.0

package mps

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/gpushare/dra-driver-gpushare/pkg/atomicfile"
)

// readJSON reads a file of a GPU. what begins its errors. there is true for a file that is
// damaged, which is an error, too.
func readJSON(path, what string, v any) (there bool, err error) {
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("%s: %w", what, err)
	}
	if err := json.Unmarshal(data, v); err != nil {
		return true, fmt.Errorf("%s from %s: %w", what, path, err)
	}
	return true, nil
}

// gpusWith lists the GPUs with such a file.
func gpusWith(pattern string) ([]string, error) {
	files, err := filepath.Glob(pattern)
	if err != nil {
		return nil, err
	}
	var uuids []string
	for _, path := range files {
		uuids = append(uuids, filepath.Base(filepath.Dir(path)))
	}
	return uuids, nil
}

// writeJSON writes a file of a GPU, and makes the GPU's directory first where there is none.
func writeJSON(path, what string, v any) error {
	data, err := json.Marshal(v)
	if err != nil {
		return err
	}
	err = atomicfile.Write(path, data, 0o644, false)
	if errors.Is(err, fs.ErrNotExist) {
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return fmt.Errorf("make the GPU's directory: %w", err)
		}
		err = atomicfile.Write(path, data, 0o644, false)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	return nil
}
