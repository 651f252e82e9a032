// SPDX-License-Identifier: Apache-2.0

// Package driverlib knows in which directories an NVIDIA driver has its libraries.
package driverlib

import (
	"debug/elf"
	"os"
	"path/filepath"
	"slices"
	"strings"

	securejoin "github.com/cyphar/filepath-securejoin"
)

// NVML is the name of a library in every driver installation.
const NVML = "libnvidia-ml.so.1"

// usual is where distributions' packages and NVIDIA's installer put them, in the order in which
// nvidia-container-toolkit looks (pkg/lookup/library.go).
var usual = []string{
	"/usr/lib64", "/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu",
	"/usr/lib/x86_64-linux-gnu/nvidia/current", "/usr/lib/aarch64-linux-gnu/nvidia/current",
	"/lib64", "/lib/x86_64-linux-gnu", "/lib/aarch64-linux-gnu",
	"/lib/x86_64-linux-gnu/nvidia/current", "/lib/aarch64-linux-gnu/nvidia/current",
}

// Dirs are the directories in which to look for the libraries of the driver that is installed in root, as this process
// sees both: the further ones, which are as seen from root, the usual ones and, where none of these has the driver,
// those that the loader in root is told of (ld.so.conf, see ldconfig(8)).
//
// The toolkit would look into the loader's cache. It maps that into memory at each search, and never unmaps it. Nor
// does it resolve links in the driver root. So the directories are those that links lead to, and where each library is
// a link to another directory, as on NixOS, that one too.
func Dirs(root string, further []string) []string {
	var dirs []string
	add := func(dir string) {
		if !slices.Contains(dirs, dir) {
			dirs = append(dirs, dir)
		}
	}
	for _, dir := range slices.Concat(further, usual) {
		add(Resolve(root, dir))
		if of := filepath.Dir(Resolve(root, filepath.Join(dir, NVML))); hasDriver(of) {
			add(of)
		}
	}
	if slices.ContainsFunc(dirs, hasDriver) {
		return dirs
	}
	// The last two are ldconfig's own.
	for _, dir := range append(told(root, "/etc/ld.so.conf", maxIncludes), "/lib", "/usr/lib") {
		if local := filepath.Dir(Resolve(root, filepath.Join(dir, NVML))); hasDriver(local) {
			add(local)
		}
	}
	return dirs
}

// Resolve returns where a path in the driver root leads, as this process sees it. To the node's programs absolute links
// there begin at that root.
func Resolve(root, path string) string {
	resolved, err := securejoin.SecureJoin(root, path)
	if err != nil {
		// Links that lead in a circle: whoever opens it is told.
		return filepath.Join(root, path)
	}
	return resolved
}

// hasDriver reports whether the driver's libraries for programs of 64 bits are in the directory.
func hasDriver(dir string) bool {
	library, err := elf.Open(filepath.Join(dir, NVML))
	if err != nil {
		return false
	}
	defer library.Close()
	return library.Class == elf.ELFCLASS64
}

// maxIncludes is how deep files may include each other.
const maxIncludes = 4

// told are the directories that a file names which tells the loader where to look, and those that it includes. What
// cannot be read names none.
func told(root, file string, includes int) []string {
	content, err := os.ReadFile(filepath.Join(root, file))
	if err != nil || includes == 0 {
		return nil
	}
	var dirs []string
	for line := range strings.Lines(string(content)) {
		line, _, _ = strings.Cut(line, "#")
		fields := strings.Fields(line)
		switch {
		case len(fields) == 1 && filepath.IsAbs(fields[0]):
			dirs = append(dirs, fields[0])
		case len(fields) > 1 && fields[0] == "include":
			for _, pattern := range fields[1:] {
				if !filepath.IsAbs(pattern) {
					pattern = filepath.Join(filepath.Dir(file), pattern)
				}
				// A pattern that is malformed matches nothing.
				found, _ := filepath.Glob(filepath.Join(root, pattern))
				for _, f := range found {
					dirs = append(dirs, told(root, strings.TrimPrefix(f, filepath.Clean(root)), includes-1)...)
				}
			}
		}
	}
	return dirs
}
