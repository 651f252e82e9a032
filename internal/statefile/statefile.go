// SPDX-License-Identifier: Apache-2.0

// Package statefile keeps values that outlive their process, each as JSON in a file of its own.
package statefile

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/gpushare/dra-driver-gpushare/pkg/atomicfile"
)

// File keeps one value. Fields that T does not have are ignored, so that an older program reads what a newer one wrote.
type File[T any] struct {
	Path string
	// Perm are the permissions of the file; 0600 if zero.
	Perm fs.FileMode
	// Synced has Store return when the value is on disk: it outlives a power failure.
	Synced bool
	// Check reports what is wrong with a value that was decoded, as its version; nil takes any.
	Check func(T) error
}

// Load returns the value that was stored. found is false where there is no file, and where it cannot be read, which is
// an error. A file whose content is not understood is found, and an error, too.
func (f File[T]) Load() (value T, found bool, err error) {
	data, err := os.ReadFile(f.Path)
	if errors.Is(err, fs.ErrNotExist) {
		return value, false, nil
	}
	if err != nil {
		return value, false, err
	}
	value, err = f.decode(data)
	if err != nil {
		return value, true, fmt.Errorf("decode %s: %w", f.Path, err)
	}
	return value, true, nil
}

func (f File[T]) decode(data []byte) (value T, err error) {
	var none T
	if err := json.Unmarshal(data, &value); err != nil {
		return none, err
	}
	if f.Check != nil {
		if err := f.Check(value); err != nil {
			return none, err
		}
	}
	return value, nil
}

// Store replaces the value. A process that is killed meanwhile leaves the old one or the new one.
func (f File[T]) Store(value T) error {
	data, err := json.Marshal(value)
	if err != nil {
		return fmt.Errorf("encode %s: %w", f.Path, err)
	}
	perm := f.Perm
	if perm == 0 {
		perm = 0o600
	}
	return atomicfile.Write(f.Path, data, perm, f.Synced)
}

// Remove removes the file; that there is none is not an error.
func (f File[T]) Remove() error { return atomicfile.Remove(f.Path) }

// DamagedPath is where SetAside puts the file.
func (f File[T]) DamagedPath() string { return f.Path + ".damaged" }

// SetAside moves a file that is not understood out of the way, for people to look at.
func (f File[T]) SetAside() error {
	if err := os.Rename(f.Path, f.DamagedPath()); err != nil {
		return fmt.Errorf("set the damaged file aside: %w", err)
	}
	return nil
}
