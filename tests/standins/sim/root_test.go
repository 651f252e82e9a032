// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"bytes"
	"debug/elf"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/internal/testneeds"
)

func writeRoot(t *testing.T, s *Spec, dir string, given ...Part) {
	t.Helper()
	testneeds.DeviceNodes(t)
	expect.NoError(t, s.WriteRoot(dir, given...))
}

// tree maps each path below dir to when it was last written to.
func tree(t *testing.T, dir string) map[string]time.Time {
	t.Helper()
	all := map[string]time.Time{}
	err := filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		name, err := filepath.Rel(dir, p)
		all[name] = info.ModTime()
		return err
	})
	expect.NoError(t, err)
	return all
}

func TestWriteRoot(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "driver")
	s := load(t, "dgx1").ForNode("n1")
	writeRoot(t, s, dir)

	for name, device := range map[string]uint64{
		"dev/nvidia0": unix.Mkdev(60, 0), "dev/nvidia7": unix.Mkdev(60, 7),
		"dev/nvidiactl": unix.Mkdev(60, 255), "dev/nvidia-modeset": unix.Mkdev(60, 254),
		"dev/nvidia-uvm": unix.Mkdev(61, 0), "dev/nvidia-uvm-tools": unix.Mkdev(61, 1),
	} {
		var st unix.Stat_t
		expect.NoError(t, unix.Lstat(filepath.Join(dir, name), &st))
		if st.Mode != unix.S_IFCHR|0o666 || st.Rdev != device {
			t.Errorf("%s: mode %o, number %x; want %o, %x", name, st.Mode, st.Rdev, unix.S_IFCHR|0o666, device)
		}
	}
	lib, err := filepath.EvalSymlinks(filepath.Join(dir, LibraryDir, "libcuda.so.1"))
	if err != nil || filepath.Base(lib) != "libcuda.so.570.124.06" {
		t.Errorf("libcuda.so.1 leads to %s: %v", lib, err)
	}
	numa, err := os.ReadFile(filepath.Join(dir, "sys/bus/pci/devices/0000:86:00.0/numa_node"))
	if err != nil || string(numa) != "1\n" {
		t.Errorf("NUMA node %q: %v", numa, err)
	}
	again, err := Load(filepath.Join(dir, MachineFile))
	expect.NoError(t, err)
	expect.Equal(t, s, again, "the machine file says")
}

func TestWriteRootAgain(t *testing.T) {
	dir := t.TempDir()
	writeRoot(t, load(t, "v100x4"), dir)
	before := tree(t, dir)
	writeRoot(t, load(t, "v100x4"), dir)
	expect.Equal(t, before, tree(t, dir), "after the second write")
}

func TestWriteRootWithProgram(t *testing.T) {
	dir := t.TempDir()
	given := Part{Name: "nvidia-cuda-mps-control", Content: []byte("control")}
	writeRoot(t, load(t, "t4x1"), dir)
	writeRoot(t, load(t, "t4x1"), dir, given)
	path := filepath.Join(dir, "usr/bin", given.Name)
	content, err := os.ReadFile(path)
	if err != nil || string(content) != "control" {
		t.Errorf("content %q: %v", content, err)
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o755 {
		t.Errorf("it cannot be run: %v, %v", info, err)
	}
	// The supervisor mounts its directory there, and cannot make it.
	if info, err := os.Stat(filepath.Join(dir, "run/gpushare/mps")); err != nil || !info.IsDir() {
		t.Errorf("no place for the pipe directories: %v", err)
	}
}

func TestWriteRootOfAnotherMachine(t *testing.T) {
	dir, fresh := t.TempDir(), t.TempDir()
	writeRoot(t, load(t, "dgx1"), dir)
	own := filepath.Join(dir, "etc")
	expect.NoError(t, os.Mkdir(own, 0o755))
	// What is damaged is created again.
	expect.NoError(t, os.Remove(filepath.Join(dir, "dev/nvidiactl")))
	expect.NoError(t, os.Mkdir(filepath.Join(dir, "dev/nvidiactl"), 0o755))
	writeRoot(t, load(t, "t4x1"), dir)
	writeRoot(t, load(t, "t4x1"), fresh)
	got := tree(t, dir)
	if _, ok := got["etc"]; !ok {
		t.Error("a directory that is not the root's was removed")
	}
	delete(got, "etc")
	expect.Equal(t, slices.Sorted(maps.Keys(tree(t, fresh))), slices.Sorted(maps.Keys(got)), "files")
}

func TestWriteRootLeavesOthersAlone(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "dev")
	expect.NoError(t, os.WriteFile(file, []byte("mine"), 0o644))
	err := load(t, "t4x1").WriteRoot(dir)
	if err == nil || !strings.Contains(err.Error(), "left alone") {
		t.Errorf("error %v, want a refusal", err)
	}
	if data, err := os.ReadFile(file); err != nil || string(data) != "mine" {
		t.Errorf("the file was touched: %q, %v", data, err)
	}
}

func TestSharedObject(t *testing.T) {
	for _, soname := range []string{"libcuda.so.1", "libnvidia-ptxjitcompiler.so.1"} {
		f, err := elf.NewFile(bytes.NewReader(sharedObject(soname)))
		expect.NoError(t, err)
		names, err := f.DynString(elf.DT_SONAME)
		if err != nil || !slices.Equal(names, []string{soname}) {
			t.Errorf("soname %v, want %s: %v", names, soname, err)
		}
		// A library for another architecture is none to the node's loader, nor to nvidia-container-toolkit.
		want := map[string]elf.Machine{"amd64": elf.EM_X86_64, "arm64": elf.EM_AARCH64}[runtime.GOARCH]
		if f.Machine != want {
			t.Errorf("%s is for %v, want %v", soname, f.Machine, want)
		}
	}
}
