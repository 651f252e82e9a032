// SPDX-License-Identifier: Apache-2.0

// Package driver finds the NVIDIA driver's files on a machine. They can lie in a folder of their own, outside of the
// loader's path.
package driver

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/gpushare/dra-driver-gpushare/internal/driverlib"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/mps/control"
)

// Driver is where the driver's files are.
type Driver struct {
	// Root is the directory that the driver is installed in.
	Root string
	// NVML and CUDA are the libraries, as this process sees them; CUDA is empty where there is none.
	NVML, CUDA string
	// Odd is the directory of the libraries in Root, if gpu-kubelet-plugin does not look there by itself.
	Odd string
	// SMI and MPSControl are programs, as paths in Root; empty where there is none.
	SMI, MPSControl string
}

// Find looks for the driver that is installed in a root, or in any where that is empty. The further directories come
// from LD_LIBRARY_PATH.
func Find(root string, further []string) (*Driver, error) {
	roots := []string{root}
	if root == "" {
		// Behind the first are drivers that a container installs.
		roots = []string{"/", "/run/nvidia/driver", "/home/kubernetes/bin/nvidia"}
	}
	for _, r := range roots {
		if d := find(filepath.Clean(r), further); d != nil {
			return d, nil
		}
	}
	return nil, fmt.Errorf("no NVIDIA driver: no %s where loaders look, nor below /usr/local and /opt, in %s: install "+
		"the driver, or name its folder in LD_LIBRARY_PATH", driverlib.NVML, strings.Join(roots, ", "))
}

func find(root string, further []string) *Driver {
	usual := driverlib.Dirs(root, nil)
	dirs := slices.Clone(usual)
	for _, dir := range further {
		dirs = append(dirs, filepath.Join(root, dir))
	}
	dirs = append(dirs, below(root)...)
	nvml := first(dirs, driverlib.NVML)
	if nvml == "" {
		return nil
	}
	// Where the usual directory has links alone, the libraries' names with the version are where these lead to.
	if file, err := filepath.EvalSymlinks(nvml); err == nil && strings.HasPrefix(file, root) {
		if at := first([]string{filepath.Dir(file)}, driverlib.NVML); at != "" {
			nvml = at
		}
	}
	dir := filepath.Dir(nvml)
	in := func(path string) string {
		if path == "" {
			return ""
		}
		return filepath.Join("/", strings.TrimPrefix(path, root))
	}
	// Beside libraries in a folder of their own; what is in the usual ones may be scripts that call these.
	programs := []string{filepath.Join(filepath.Dir(dir), "bin")}
	for _, usual := range []string{"/usr/bin", "/usr/local/bin", "/bin", "/usr/sbin"} {
		programs = append(programs, filepath.Join(root, usual))
	}
	programs = append(programs, dir)
	d := &Driver{Root: root, NVML: nvml, CUDA: first(append([]string{dir}, dirs...), "libcuda.so.1"),
		SMI:        in(first(programs, "nvidia-smi")),
		MPSControl: in(first(programs, filepath.Base(control.DefaultPath)))}
	if !slices.Contains(usual, dir) {
		d.Odd = in(dir)
	}
	return d
}

// first is the file of that name in the first of the directories that has it. A link that leads nowhere is no file.
func first(dirs []string, name string) string {
	for _, dir := range dirs {
		file := filepath.Join(dir, name)
		if _, err := os.Stat(file); err == nil {
			return file
		}
	}
	return ""
}

// below are the directories of the library up to five below those where others were seen.
func below(root string) (dirs []string) {
	for _, top := range []string{"/usr/local", "/opt"} {
		for depth := range 5 {
			pattern := filepath.Join(root, top, strings.Repeat("*/", depth), driverlib.NVML)
			found, _ := filepath.Glob(pattern) // The pattern is well-formed.
			for _, file := range found {
				dirs = append(dirs, filepath.Dir(file))
			}
		}
	}
	return dirs
}

// Settings are those of gpu-kubelet-plugin that tell it where the files are, as docs/reference.md has them.
func (d *Driver) Settings() map[string]string {
	settings := map[string]string{"NVIDIA_DRIVER_ROOT": d.Root}
	if d.Odd != "" {
		settings["NVIDIA_LIBRARY_SEARCH_PATHS"] = d.Odd
	}
	if d.MPSControl != "" && d.MPSControl != control.DefaultPath {
		settings["NVIDIA_MPS_CONTROL"] = d.MPSControl
	}
	return settings
}

// Mounts are the directories that a node of the tests' clusters needs for the driver, besides those of the machine that
// all have.
func (d *Driver) Mounts() []string {
	if d.Root != "/" {
		return []string{d.Root}
	}
	var mounts []string
	for _, file := range []string{d.NVML, d.CUDA, d.SMI, d.MPSControl} {
		parts := strings.Split(strings.TrimPrefix(file, "/"), "/")
		if file == "" || slices.Contains([]string{"usr", "bin", "sbin", "lib", "lib64"}, parts[0]) {
			continue
		}
		// As far up as it is the driver's own: /opt/nvidia of /opt/nvidia/lib64/…
		dir := "/" + filepath.Join(parts[:min(2, len(parts)-1)]...)
		if !slices.Contains(mounts, dir) {
			mounts = append(mounts, dir)
		}
	}
	return mounts
}
