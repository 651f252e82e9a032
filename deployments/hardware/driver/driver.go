// SPDX-License-Identifier: Apache-2.0

// Package driver finds the NVIDIA driver's files on a machine. They can lie in a folder of their own, outside of the
// loader's path.
package driver

import (
	"errors"
	"fmt"
	"io/fs"
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

var (
	// containerRoots are the roots of drivers that a container installs.
	containerRoots = []string{"/run/nvidia/driver", "/home/kubernetes/bin/nvidia"}
	// odd are directories that libraries were seen in besides the usual ones, and oddTops are where others may be.
	odd = []string{"/usr/local/nvidia/lib64", "/usr/local/nvidia/lib", "/usr/lib/wsl/lib", "/opt/nvidia/lib64",
		"/opt/nvidia/lib"}
	oddTops = []string{"/usr/local", "/opt"}
)

// maxDepth is how far below oddTops to look.
const maxDepth = 5

// ErrNone is that the machine has no driver where it was looked for.
var ErrNone = errors.New("no NVIDIA driver")

// Find looks for the driver that is installed in a root, or in any where that is empty. The further directories come
// from LD_LIBRARY_PATH.
func Find(root string, further []string) (*Driver, error) {
	roots := []string{root}
	if root == "" {
		roots = append([]string{"/"}, containerRoots...)
	}
	for _, r := range roots {
		if d := find(r, further); d != nil {
			return d, nil
		}
	}
	return nil, fmt.Errorf("%w: no %s where loaders look, in %s, nor below %s: install the driver, or name its folder in "+
		"LD_LIBRARY_PATH", ErrNone, driverlib.NVML, strings.Join(odd[:2], ", "), strings.Join(oddTops, " and "))
}

func find(root string, further []string) *Driver {
	usual := driverlib.Dirs(root, nil)
	dirs := slices.Clone(usual)
	for _, dir := range slices.Concat(further, odd) {
		dirs = append(dirs, filepath.Join(root, dir))
	}
	dir := first(dirs, driverlib.NVML)
	if dir == "" {
		dir = below(root)
	}
	if dir == "" {
		return nil
	}
	dir = linked(root, dir)
	in := func(path string) string { return filepath.Join("/", strings.TrimPrefix(path, filepath.Clean(root))) }
	d := &Driver{Root: root, NVML: filepath.Join(dir, driverlib.NVML)}
	if !slices.Contains(usual, dir) {
		d.Odd = in(dir)
	}
	const cuda = "libcuda.so.1"
	if with := first(append([]string{dir}, dirs...), cuda); with != "" {
		d.CUDA = filepath.Join(with, cuda)
	}
	// Beside libraries in a folder of their own; what is in the usual ones may be scripts that call these.
	programs := []string{filepath.Join(filepath.Dir(dir), "bin")}
	for _, usual := range []string{"/usr/bin", "/usr/local/bin", "/bin", "/usr/sbin"} {
		programs = append(programs, filepath.Join(root, usual))
	}
	programs = append(programs, dir)
	for name, path := range map[string]*string{"nvidia-smi": &d.SMI, filepath.Base(control.DefaultPath): &d.MPSControl} {
		if with := first(programs, name); with != "" {
			*path = in(filepath.Join(with, name))
		}
	}
	return d
}

// first is the first of the directories that has the file. A link that leads nowhere is no file.
func first(dirs []string, name string) string {
	for _, dir := range dirs {
		if _, err := os.Stat(filepath.Join(dir, name)); err == nil {
			return dir
		}
	}
	return ""
}

// linked is where the libraries are if the directory has links to them only: their names with the version are not
// there.
func linked(root, dir string) string {
	file, err := filepath.EvalSymlinks(filepath.Join(dir, driverlib.NVML))
	if err != nil || !strings.HasPrefix(file, filepath.Clean(root)) {
		return dir
	}
	if first([]string{filepath.Dir(file)}, driverlib.NVML) != "" {
		return filepath.Dir(file)
	}
	return dir
}

// below finds a directory of the library below those where others were seen.
func below(root string) (found string) {
	for _, top := range oddTops {
		start := filepath.Join(root, top)
		// What cannot be read has no driver for anybody.
		_ = filepath.WalkDir(start, func(name string, entry fs.DirEntry, err error) error {
			switch {
			case err != nil && entry != nil && entry.IsDir():
				return fs.SkipDir
			case err != nil:
				return nil
			case entry.IsDir() && strings.Count(strings.TrimPrefix(name, start), "/") >= maxDepth:
				return fs.SkipDir
			case entry.Name() == driverlib.NVML && first([]string{filepath.Dir(name)}, driverlib.NVML) != "":
				found = filepath.Dir(name)
				return fs.SkipAll
			}
			return nil
		})
		if found != "" {
			break
		}
	}
	return found
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

// shared are directories that nodes of the tests' clusters have from the machine as they are.
var shared = []string{"usr", "bin", "sbin", "lib", "lib64"}

// Mounts are the directories that such a node needs besides for the driver.
func (d *Driver) Mounts() []string {
	if d.Root != "/" {
		return []string{d.Root}
	}
	var mounts []string
	for _, file := range []string{d.NVML, d.CUDA, d.SMI, d.MPSControl} {
		parts := strings.Split(strings.TrimPrefix(file, "/"), "/")
		if file == "" || slices.Contains(shared, parts[0]) {
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
