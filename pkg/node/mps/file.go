// SPDX-License-Identifier: Apache-2.0

package mps

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/gpushare/dra-driver-gpushare/internal/statefile"
)

// read reads a file of a GPU. what begins its errors. there is true for a file that is
// damaged, which is an error, too.
func read[T any](path, what string) (v T, there bool, err error) {
	v, there, err = statefile.File[T]{Path: path}.Load()
	if err != nil {
		err = fmt.Errorf("%s: %w", what, err)
	}
	return v, there, err
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

// write writes a file of a GPU, and makes the GPU's directory first where there is none.
func write[T any](path, what string, v T) error {
	file := statefile.File[T]{Path: path, Perm: 0o644}
	err := file.Store(v)
	if errors.Is(err, fs.ErrNotExist) {
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return fmt.Errorf("make the GPU's directory: %w", err)
		}
		err = file.Store(v)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	return nil
}
