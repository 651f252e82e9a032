// SPDX-License-Identifier: Apache-2.0

package cdi

import (
	"os"
	"path/filepath"
	"slices"

	"github.com/NVIDIA/nvidia-container-toolkit/pkg/lookup"
	specs "tags.cncf.io/container-device-interface/specs-go"

	"github.com/gpushare/dra-driver-gpushare/internal/driverlib"
)

// programs are those of the driver that nvcdi looks for (pkg/nvcdi/driver-nvml.go).
var programs = []string{
	"nvidia-smi", "nvidia-debugdump", "nvidia-persistenced", "nvidia-cuda-mps-control", "nvidia-cuda-mps-server",
	"nvidia-imex", "nvidia-imex-ctl",
}

// addPrograms mounts the programs to which absolute links of the node's lead, such as Debian's alternatives: nvcdi
// follows links in this process' root directory, and finds nothing there. The container has each program where the
// node has the link.
func (o BaseOptions) addPrograms(edits *specs.ContainerEdits) {
	dirs := lookup.GetPaths("")
	for _, program := range programs {
		for _, dir := range dirs {
			path := filepath.Join(dir, program)
			if slices.ContainsFunc(edits.Mounts, func(m *specs.Mount) bool { return m.ContainerPath == path }) {
				break
			}
			host := driverlib.Resolve(o.DriverRoot, path)
			if info, err := os.Stat(host); err != nil || !info.Mode().IsRegular() || info.Mode()&0o111 == 0 {
				continue
			}
			edits.Mounts = append(edits.Mounts, &specs.Mount{HostPath: host, ContainerPath: path,
				Options: []string{"ro", "nosuid", "nodev", "rbind", "rprivate"}})
			break
		}
	}
}

// nixosLdconfig is where NixOS has ldconfig.
const nixosLdconfig = "/run/current-system/sw/bin/ldconfig"

// ldconfig returns the host's program for the hook update-ldcache, empty for the hook's default, /sbin/ldconfig.
func (o BaseOptions) ldconfig() string {
	there := func(path string) bool {
		_, err := os.Stat(driverlib.Resolve(o.DriverRoot, path))
		return err == nil
	}
	if o.HostDriverRoot == "/" && !there("/sbin/ldconfig") && there(nixosLdconfig) {
		return nixosLdconfig
	}
	return ""
}
