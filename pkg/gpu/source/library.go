// SPDX-License-Identifier: Apache-2.0

package source

import (
	"os"
	"path/filepath"
	"strings"

	"github.com/gpushare/dra-driver-gpushare/pkg/gpu/nvml"
)

// Library is the NVML library, as this process sees it and as the host does. It is found anew
// by each call.
func Library(o Options) (local, onHost string, err error) {
	if local, err = nvml.LibraryPath(o.open()); err != nil {
		return "", "", err
	}
	// The name under which an upgrade leaves the library, not that of its version.
	if named := filepath.Join(filepath.Dir(local), nvml.LibraryName); local != nvml.LibraryName {
		if _, err := os.Stat(named); err == nil {
			local = named
		}
	}
	onHost = local
	if o.HostRoot != "/" && filepath.IsAbs(local) {
		onHost = "/" + strings.TrimPrefix(strings.TrimPrefix(local, filepath.Clean(o.HostRoot)), "/")
	}
	return local, onHost, nil
}
