// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime/pprof"
)

// profile writes a CPU profile of this program until stop is called. Without a
// directory for profiles it does nothing.
func (b *bench) profile(name string) (stop func(), err error) {
	if b.profiles == "" {
		return func() {}, nil
	}
	path := filepath.Join(b.profiles, name+".pprof")
	file, err := os.Create(path)
	if err != nil {
		return nil, fmt.Errorf("write a profile: %w", err)
	}
	if err := pprof.StartCPUProfile(file); err != nil {
		return nil, fmt.Errorf("write profile %s: %w", path, err)
	}
	return func() {
		pprof.StopCPUProfile()
		if err := file.Close(); err != nil {
			progress("write profile %s: %v", path, err)
		}
	}, nil
}
