// SPDX-License-Identifier: Apache-2.0

// Package locate finds the NVIDIA driver's files on a machine. They can lie in a folder
// of their own, outside of the loader's path.
package locate

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
)

// Names of the driver's files.
const (
	nvmlLibrary = "libnvidia-ml.so.1"
	cudaLibrary = "libcuda.so.1"
	smiProgram  = "nvidia-smi"
	mpsProgram  = "nvidia-cuda-mps-control"
)

// Driver is where the driver's files are. Paths are those on the host, also of a driver
// root.
type Driver struct {
	// Root is the directory that the driver is installed in.
	Root string
	// NVML and CUDA are the libraries; CUDA is empty where there is none.
	NVML, CUDA string
	// Odd is the directory of the libraries in Root if no loader looks there.
	Odd string
	// SMI and MPSControl are programs, as paths in Root; empty where there is none.
	SMI, MPSControl string
}

// Search says where to look.
type Search struct {
	// FS is the machine's file system from its root.
	FS fs.FS
	// Root is the driver root, "/" by default.
	Root string
	// Libraries are further directories, as from LD_LIBRARY_PATH.
	Libraries []string
}

// usual are the directories that loaders and the driver's own search look into.
var usual = []string{
	"/usr/lib/x86_64-linux-gnu", "/usr/lib64", "/lib/x86_64-linux-gnu", "/lib64", "/usr/lib", "/lib",
	"/usr/lib/x86_64-linux-gnu/nvidia/current",
}

// odd are directories that drivers were seen in besides, and where to look for others.
var (
	odd = []string{
		"/usr/local/nvidia/lib64",
		"/usr/local/nvidia/lib",
		"/usr/lib/wsl/lib",
		"/opt/nvidia/lib64",
		"/opt/nvidia/lib",
	}
	oddTops = []string{"/usr/local", "/opt"}
)

// containerRoots are the driver roots of drivers that a container installs.
var containerRoots = []string{"/run/nvidia/driver", "/home/kubernetes/bin/nvidia"}

// ErrNone says that the machine has no driver where it was looked for.
var ErrNone = errors.New("no NVIDIA driver")

// Find looks for the driver.
func Find(s Search) (*Driver, error) {
	roots := []string{s.Root}
	if s.Root == "" {
		roots = append([]string{"/"}, containerRoots...)
	}
	for _, root := range roots {
		if d := s.find(root); d != nil {
			return d, nil
		}
	}
	return nil, fmt.Errorf(
		"%w: no %s in %s, in %s, nor below %s: install the driver, or name its folder in LD_LIBRARY_PATH",
		ErrNone,
		nvmlLibrary,
		strings.Join(usual[:2], ", "),
		strings.Join(odd[:2], ", "),
		strings.Join(oddTops, " and "),
	)
}

func (s Search) find(root string) *Driver {
	d := &Driver{Root: root}
	dirs := slices.Concat(usual, s.Libraries, odd)
	dir := s.first(root, dirs, nvmlLibrary)
	if dir == "" {
		dir = s.walk(root)
	}
	if dir == "" {
		return nil
	}
	dir = s.linkedDir(root, dir)
	d.NVML = filepath.Join(root, dir, nvmlLibrary)
	if !slices.Contains(usual, dir) {
		d.Odd = dir
	}
	if with := s.first(root, append([]string{dir}, dirs...), cudaLibrary); with != "" {
		d.CUDA = filepath.Join(root, with, cudaLibrary)
	}
	// Beside libraries in a folder of their own; what is in the usual ones may be scripts that call these.
	programs := []string{path.Join(path.Dir(dir), "bin"), "/usr/bin", "/usr/local/bin", "/bin", "/usr/sbin", dir}
	d.SMI = s.program(root, programs, smiProgram)
	d.MPSControl = s.program(root, programs, mpsProgram)
	return d
}

// linkedDir is where the driver's libraries are if the usual directory has links to them only: their names with the
// version are not there.
func (s Search) linkedDir(root, dir string) string {
	file := path.Join(dir, nvmlLibrary)
	for range maxDepth {
		target, err := fs.ReadLink(s.FS, strings.TrimPrefix(path.Join(root, file), "/"))
		if err != nil {
			break
		}
		if !path.IsAbs(target) {
			target = path.Join(path.Dir(file), target)
		}
		file = path.Clean(target)
	}
	if linked := path.Dir(file); !slices.Contains(usual, linked) && s.has(path.Join(root, linked, nvmlLibrary)) {
		return linked
	}
	return dir
}

func (s Search) program(root string, dirs []string, name string) string {
	if dir := s.first(root, dirs, name); dir != "" {
		return path.Join(dir, name)
	}
	return ""
}

// first is the first of the directories, in root, that has the file.
func (s Search) first(root string, dirs []string, name string) string {
	for _, dir := range dirs {
		if s.has(path.Join(root, dir, name)) {
			return path.Clean("/" + dir)
		}
	}
	return ""
}

// has follows links: one that leads nowhere is no driver.
func (s Search) has(file string) bool {
	_, err := fs.Stat(s.FS, strings.TrimPrefix(path.Clean(file), "/"))
	return err == nil
}

// maxDepth is how far below a directory to look.
const maxDepth = 5

func (s Search) walk(root string) string {
	for _, top := range oddTops {
		start := strings.TrimPrefix(path.Join(root, top), "/")
		found := ""
		// What cannot be read has no driver for anybody.
		_ = fs.WalkDir(s.FS, start, func(name string, entry fs.DirEntry, err error) error {
			switch {
			case err != nil:
				return skipDir(entry)
			case entry.IsDir() && strings.Count(strings.TrimPrefix(name, start), "/") >= maxDepth:
				return fs.SkipDir
			case entry.Name() == nvmlLibrary && s.has(name):
				found = path.Dir(name)
				return fs.SkipAll
			}
			return nil
		})
		if found != "" {
			return path.Clean("/" + strings.TrimPrefix("/"+found, path.Clean(root)))
		}
	}
	return ""
}

func skipDir(entry fs.DirEntry) error {
	if entry != nil && entry.IsDir() {
		return fs.SkipDir
	}
	return nil
}

// Settings are those of the driver that tell it where the files are, as
// docs/reference.md has them.
func (d *Driver) Settings() map[string]string {
	settings := map[string]string{"NVIDIA_DRIVER_ROOT": d.Root}
	if d.Odd != "" {
		settings["NVIDIA_LIBRARY_SEARCH_PATHS"] = d.Odd
	}
	if d.MPSControl != "" && d.MPSControl != "/usr/bin/"+mpsProgram {
		settings["NVIDIA_MPS_CONTROL"] = d.MPSControl
	}
	return settings
}

// shared are directories that nodes of a cluster have from the machine as they are.
var shared = []string{"/usr", "/bin", "/sbin", "/lib", "/lib64"}

// Mounts are the directories that a node needs besides for the driver.
func (d *Driver) Mounts() []string {
	if d.Root != "/" {
		return []string{d.Root}
	}
	var mounts []string
	for _, file := range []string{d.NVML, d.CUDA, d.SMI, d.MPSControl} {
		parts := strings.Split(file, "/")
		if file == "" || slices.Contains(shared, "/"+parts[1]) {
			continue
		}
		// As far up as it is the driver's own: /opt/nvidia of /opt/nvidia/lib64/…
		dir := "/" + path.Join(parts[1:min(3, len(parts)-1)]...)
		if !slices.Contains(mounts, dir) {
			mounts = append(mounts, dir)
		}
	}
	return mounts
}

// Machine is the file system of this machine.
func Machine() fs.FS { return os.DirFS("/") }
