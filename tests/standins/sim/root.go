// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
	"golang.org/x/sys/unix"
)

// Where things lie below a driver root that WriteRoot has written.
const (
	// MachineFile is the machine file of that node.
	MachineFile = "machine.yaml"
	// SysDir is the node's sysfs as far as it is simulated.
	SysDir = "sys"
	// StateDir has what is set at run time: compute modes, and who has contexts (package
	// contexts). On a node it is writable where programs see the rest of the root read-only,
	// as a driver takes it without a file.
	StateDir = "state"
)

// Device numbers. The real driver has major 195; a node of that number would
// reach a real GPU on a machine that has one. Majors 60 and 61 are set aside
// for local use by the kernel's list of devices, so that no driver is ever
// behind them: opening such a node fails with ENXIO, always.
const (
	gpuMajor       = 60
	uvmMajor       = 61
	modesetMinor   = 254
	ctlMinor       = 255
	uvmMinor       = 0
	uvmToolsMinor  = 1
	deviceNodeMode = 0o666
)

// ownDirs are the directories of the root in which nothing else is left.
var ownDirs = []string{"dev", SysDir, ProcDir, "usr"}

// libraries are the driver's libraries that a compute container gets.
var libraries = []string{
	"libcuda", "libcudadebugger", NVMLLibrary, "libnvidia-nvvm", "libnvidia-opencl", "libnvidia-ptxjitcompiler",
}

// mpsDir is where gpu-mps-supervisor makes its directory visible to the driver's
// programs. The driver root cannot be written from its container.
const mpsDir = "run/gpushare/mps"

// programs are the driver's programs that a compute container gets.
var programs = []string{
	"nvidia-smi", "nvidia-debugdump", "nvidia-persistenced", "nvidia-cuda-mps-control", "nvidia-cuda-mps-server",
}

const programDir = "usr/bin/"

const program = "#!/bin/sh\necho \"$0: this node's NVIDIA driver is simulated\" >&2\nexit 1\n"

// NVMLLibrary is the name of the part that is NVML.
const NVMLLibrary = "libnvidia-ml"

// Part is a program or library of the driver that does something. A program runs
// with the driver root as its root directory, where there is nothing to link it to.
type Part struct {
	Name    string // e.g. "nvidia-cuda-mps-control", or NVMLLibrary
	Content []byte
}

// entry is a file, symbolic link, directory or device node of the root.
type entry struct {
	mode    fs.FileMode // with its type
	content []byte      // of a file
	target  string      // of a link
	device  uint64      // of a device node
}

// WriteRoot makes dir the node's driver root: device nodes below dev, driver
// libraries and programs below usr, the GPUs' sysfs entries below sys
// (SysDir), and the machine file itself (MachineFile), with Node set, from
// which Load and NVML give the same GPUs again. Of the driver's libraries and
// programs only those that are given do something: others are empty, or say
// that they are simulated. A given NVML library lacks what Driver.Lacks names.
//
// It may be repeated, also with another machine: what the root already has
// stays as it is, what it should not have below dev, usr and sys is removed.
// A directory that is neither empty nor such a root is refused. Making device nodes takes the
// capability CAP_MKNOD.
func (s *Spec) WriteRoot(dir string, given ...Part) error {
	if err := claim(dir); err != nil {
		return err
	}
	unlock, err := lock(dir)
	if err != nil {
		return err
	}
	defer unlock()
	return s.writeRoot(dir, given)
}

// writeRoot is for those who have the lock of a directory that is ours.
func (s *Spec) writeRoot(dir string, given []Part) error {
	entries, err := s.rootEntries()
	if err != nil {
		return err
	}
	for _, p := range given {
		if err := s.addPart(entries, p); err != nil {
			return err
		}
	}
	// First, so that an interrupted write can be repeated: see claim.
	if err := write(filepath.Join(dir, MachineFile), entries[MachineFile]); err != nil {
		return err
	}
	if err := prune(dir, entries); err != nil {
		return err
	}
	return writeAll(dir, entries)
}

// writeAll makes all entries, directories before what is in them.
func writeAll(dir string, entries map[string]entry) error {
	for _, name := range slices.Sorted(maps.Keys(entries)) {
		if err := write(filepath.Join(dir, name), entries[name]); err != nil {
			return err
		}
	}
	return nil
}

// claim makes sure that dir is ours to write to.
func claim(dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("making the driver root: %w", err)
	}
	present, err := os.ReadDir(dir)
	if err != nil {
		return fmt.Errorf("reading the driver root: %w", err)
	}
	if len(present) == 0 {
		return nil
	}
	if _, err := os.Lstat(filepath.Join(dir, MachineFile)); err != nil {
		return fmt.Errorf("%s is not empty and not the root of a simulated machine, so it is left alone: give an empty "+
			"directory: %w", dir, err)
	}
	return nil
}

// prune removes what lies in our directories below dir and is not in entries.
func prune(dir string, entries map[string]entry) error { return pruneBelow(dir, ".", entries) }

// pruneBelow prunes what is below one directory of the root, which may be missing.
func pruneBelow(dir, below string, entries map[string]entry) error {
	err := filepath.WalkDir(filepath.Join(dir, below), func(p string, d fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		name, err := filepath.Rel(dir, p)
		if err != nil {
			return err
		}
		if _, wanted := entries[filepath.ToSlash(name)]; wanted || name == "." {
			return nil
		}
		if !slices.Contains(ownDirs, strings.Split(filepath.ToSlash(name), "/")[0]) {
			return skip(d)
		}
		if err := os.RemoveAll(p); err != nil {
			return err
		}
		return skip(d)
	})
	if err != nil {
		return fmt.Errorf("removing what the driver root should not have: %w", err)
	}
	return nil
}

func skip(d fs.DirEntry) error {
	if d.IsDir() {
		return fs.SkipDir
	}
	return nil
}

// write makes one entry, unless it is there already.
func write(p string, e entry) error {
	same, err := e.isAt(p)
	if err != nil {
		return fmt.Errorf("reading the driver root: %w", err)
	}
	if same {
		return nil
	}
	if info, err := os.Lstat(p); e.mode.IsRegular() && err == nil && info.Mode().IsRegular() {
		// At once: somebody may have it open.
		return replace(p, e.content, e.mode.Perm())
	}
	if err := os.RemoveAll(p); err != nil {
		return fmt.Errorf("replacing an entry of the driver root: %w", err)
	}
	switch {
	case e.mode.IsDir():
		err = os.Mkdir(p, e.mode.Perm())
	case e.mode&fs.ModeSymlink != 0:
		err = os.Symlink(e.target, p)
	case e.mode&fs.ModeCharDevice != 0:
		err = mknod(p, e)
	default:
		err = os.WriteFile(p, e.content, e.mode.Perm())
	}
	if err == nil && e.mode&fs.ModeSymlink == 0 {
		// What was made is subject to the umask.
		err = os.Chmod(p, e.mode.Perm())
	}
	if err != nil {
		return fmt.Errorf("writing the driver root: %w", err)
	}
	return nil
}

func mknod(p string, e entry) error {
	if err := unix.Mknod(p, unix.S_IFCHR|uint32(e.mode.Perm()), int(e.device)); err != nil {
		if errors.Is(err, unix.EPERM) {
			return fmt.Errorf("making device node %s: %w: run as root, on a file system and in a user namespace that allow "+
				"device nodes", p, err)
		}
		return fmt.Errorf("making device node %s: %w", p, err)
	}
	return nil
}

// isAt reports whether the entry is already at that path.
func (e entry) isAt(p string) (bool, error) {
	info, err := os.Lstat(p)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	if info.Mode().Type() != e.mode.Type() {
		return false, nil
	}
	switch {
	case e.mode.IsDir():
		return true, nil
	case e.mode&fs.ModeSymlink != 0:
		target, err := os.Readlink(p)
		return target == e.target, err
	case e.mode&fs.ModeCharDevice != 0:
		var st unix.Stat_t
		if err := unix.Lstat(p, &st); err != nil {
			return false, err
		}
		return st.Rdev == e.device && info.Mode().Perm() == e.mode.Perm(), nil
	default:
		content, err := os.ReadFile(p)
		return bytes.Equal(content, e.content) && info.Mode().Perm() == e.mode.Perm(), err
	}
}

// rootEntries are the root's entries by their path relative to it.
func (s *Spec) rootEntries() (map[string]entry, error) {
	machine, err := yaml.Marshal(s)
	if err != nil {
		return nil, fmt.Errorf("writing the machine file: %w", err)
	}
	entries := map[string]entry{
		MachineFile: file(machine, 0o644),
		ToldFile:    file(s.told(), 0o644),
		mpsDir:      {mode: fs.ModeDir | 0o755},
		StateDir:    {mode: fs.ModeDir | 0o755},
	}
	s.addDevices(entries)
	s.addDriver(entries)
	s.addSysfs(entries)
	entries[DmemCapacity] = file(s.dmemCapacity(), 0o444)
	s.addCapabilities(entries)
	addParents(entries)
	return entries, nil
}

// addParents adds the directories that entries are in.
func addParents(entries map[string]entry) {
	for _, name := range slices.Collect(maps.Keys(entries)) {
		for parent := path.Dir(name); parent != "."; parent = path.Dir(parent) {
			entries[parent] = entry{mode: fs.ModeDir | 0o755}
		}
	}
}

func (s *Spec) addDevices(entries map[string]entry) {
	add := func(name string, major, minor uint32) {
		entries["dev/"+name] = entry{
			mode:   fs.ModeDevice | fs.ModeCharDevice | deviceNodeMode,
			device: unix.Mkdev(major, minor),
		}
	}
	for i := range s.GPUs {
		add(fmt.Sprintf("nvidia%d", s.minor(i)), gpuMajor, uint32(s.minor(i)))
	}
	add("nvidiactl", gpuMajor, ctlMinor)
	add("nvidia-modeset", gpuMajor, modesetMinor)
	add("nvidia-uvm", uvmMajor, uvmMinor)
	add("nvidia-uvm-tools", uvmMajor, uvmToolsMinor)
}

func (s *Spec) addDriver(entries map[string]entry) {
	for _, name := range libraries {
		soname := name + ".so.1"
		versioned := name + ".so." + s.Driver.Version
		entries[path.Join(LibraryDir, versioned)] = file(sharedObject(soname), 0o755)
		entries[path.Join(LibraryDir, soname)] = link(versioned)
	}
	for _, name := range programs {
		entries[programDir+name] = file([]byte(program), 0o755)
	}
}

// addPart adds what does something in the place of what does not.
func (s *Spec) addPart(entries map[string]entry, p Part) error {
	if !slices.Contains(libraries, p.Name) {
		entries[programDir+p.Name] = file(p.Content, 0o755)
		return nil
	}
	content := p.Content
	if p.Name == NVMLLibrary {
		var err error
		if content, err = s.Driver.library(content); err != nil {
			return err
		}
	}
	entries[path.Join(LibraryDir, p.Name+".so."+s.Driver.Version)] = file(content, 0o755)
	return nil
}

// addSysfs adds what pkg/gpu/nvml reads of sysfs: the link from a GPU's bus
// address to its directory below the root complex, and its NUMA node.
func (s *Spec) addSysfs(entries map[string]entry) {
	for _, c := range s.GPUs {
		device := path.Join(append(append([]string{"devices", c.Root}, c.Bridges...), c.BusID)...)
		node := -1 // what the kernel writes for a device without a NUMA node
		if c.NUMANode != nil {
			node = *c.NUMANode
		}
		entries[path.Join(SysDir, device, "numa_node")] = file(fmt.Appendf(nil, "%d\n", node), 0o444)
		entries[path.Join(SysDir, "bus/pci/devices", c.BusID)] = link(strings.Repeat("../", 3) + device)
	}
}

func file(content []byte, perm fs.FileMode) entry { return entry{mode: perm, content: content} }

func link(target string) entry { return entry{mode: fs.ModeSymlink, target: target} }
