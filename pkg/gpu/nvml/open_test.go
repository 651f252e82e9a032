// SPDX-License-Identifier: Apache-2.0

package nvml

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/internal/testneeds"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu/bounded"
	"github.com/gpushare/dra-driver-gpushare/tests/standins/sim"
)

// writeRoot writes the machine's driver root, or skips the test where device
// nodes cannot be made.
func writeRoot(t *testing.T, spec *sim.Spec, dir string) {
	t.Helper()
	testneeds.DeviceNodes(t)
	expect.NoError(t, spec.WriteRoot(dir))
}

// driverRoot makes the machine's driver root, and returns its path without symbolic links.
func driverRoot(t *testing.T, spec *sim.Spec) string {
	t.Helper()
	dir, err := filepath.EvalSymlinks(t.TempDir())
	expect.NoError(t, err)
	writeRoot(t, spec, dir)
	return dir
}

func TestOpenWithoutDriver(t *testing.T) {
	empty := t.TempDir()
	noLibrary := filepath.Join(empty, "libnvidia-ml.so.1")
	notALibrary := filepath.Join(t.TempDir(), "libnvidia-ml.so.1")
	expect.NoError(t, os.WriteFile(notALibrary, []byte("no ELF file"), 0o644))
	for _, tc := range []struct {
		name string
		opts OpenOptions
		says string
	}{
		{"an empty driver root", OpenOptions{DriverRoot: empty}, empty},
		{"a library path where nothing is", OpenOptions{LibraryPath: noLibrary}, noLibrary},
		{"a library that is none", OpenOptions{LibraryPath: notALibrary}, "file too short"},
		{"the path before the root", OpenOptions{LibraryPath: noLibrary, DriverRoot: "/"}, noLibrary},
	} {
		t.Run(tc.name, func(t *testing.T) {
			_, err := Open(t.Context(), tc.opts)
			expect.Error(t, err, "no NVIDIA driver", tc.says,
				"install the driver, or say where it is by NVIDIA_DRIVER_ROOT")
		})
	}
}

// go-nvml ends the process where it calls a function that the library lacks.
func TestOpenALibraryThatLacksFunctions(t *testing.T) {
	path := filepath.Join(t.TempDir(), "libnvidia-ml.so.1")
	build := exec.CommandContext(t.Context(), "cc", "-shared", "-fPIC", "-o", path, "-x", "c", "-")
	build.Stdin = strings.NewReader("int nvmlInit(void) { return 0; }")
	if output, err := build.CombinedOutput(); err != nil {
		testneeds.Skipf(t, "building a library: %v: %s", err, output)
	}
	_, err := Open(t.Context(), OpenOptions{LibraryPath: path})
	expect.Error(t, err, "has no nvmlShutdown", path)
}

func TestReplaced(t *testing.T) {
	spec := load(t, "t4x1")
	dir := driverRoot(t, spec)
	o := NewOpener(OpenOptions{DriverRoot: dir})
	expect.NoErrorf(t, o.Replaced(t.Context()), "before anything was loaded")
	loaded := filepath.Join(dir, sim.LibraryDir, "libnvidia-ml.so.570.124.06")
	expect.NoError(t, os.Link(loaded, filepath.Join(dir, "kept")))
	o.loaded = fileAt(loaded)
	expect.NoErrorf(t, o.Replaced(t.Context()), "unchanged")
	spec.Driver.Version = "580.95.05"
	writeRoot(t, spec, dir)
	// It may stay beside the new one.
	expect.NoError(t, os.Rename(filepath.Join(dir, "kept"), loaded))
	for range 2 {
		err := o.Replaced(t.Context())
		expect.ErrorIs(t, err, ErrReplaced)
		expect.Error(t, err, "libnvidia-ml.so.580.95.05")
	}
	expect.NoError(t, os.RemoveAll(filepath.Join(dir, "usr")))
	expect.ErrorIs(t, o.Replaced(t.Context()), ErrReplaced)
}

// A module that is reloaded is another one, though nothing else tells them apart.
func TestReplacedModule(t *testing.T) {
	dir := driverRoot(t, load(t, "t4x1"))
	sysfs := t.TempDir()
	module := filepath.Join(sysfs, "module", "nvidia")
	replaced := func(o *Opener, want bool) {
		t.Helper()
		err := o.Replaced(t.Context())
		expect.Equal(t, want, errors.Is(err, ErrReplaced), "replaced: %v", err)
	}
	initialised := func() *Opener {
		o := NewOpener(OpenOptions{DriverRoot: dir, SysFS: sysfs})
		o.loaded, o.module = fileAt(filepath.Join(dir, sim.LibraryDir, "libnvidia-ml.so.570.124.06")), o.moduleNow()
		return o
	}
	without := initialised()
	replaced(without, false)
	expect.NoError(t, os.MkdirAll(module, 0o755))
	replaced(without, true)
	with := initialised()
	expect.NoError(t, os.Chtimes(module, time.Now(), time.Now().Add(time.Hour)))
	replaced(with, false)
	// Both are there for a moment, so that the new one has another inode.
	expect.NoError(t, os.Rename(module, module+"-old"))
	replaced(with, true)
	expect.NoError(t, os.Mkdir(module, 0o755))
	replaced(with, true)
	uninitialised := NewOpener(OpenOptions{DriverRoot: dir, SysFS: sysfs})
	uninitialised.loaded = with.loaded
	replaced(uninitialised, false)
}

func TestLibraryPath(t *testing.T) {
	const name = "libnvidia-ml.so.570.124.06"
	move := func(dir, to string) error {
		to = filepath.Join(dir, to)
		return errors.Join(os.MkdirAll(filepath.Dir(to), 0o755), os.Rename(filepath.Join(dir, sim.LibraryDir), to))
	}
	odd := func(dir string) error { return move(dir, "usr/lib/odd") }
	for what, tc := range map[string]struct {
		change func(dir string) error
		search []string
		want   string
	}{
		"in the driver root":      {func(string) error { return nil }, nil, sim.LibraryDir},
		"in a further directory":  {odd, []string{"/usr/lib/odd"}, "usr/lib/odd"},
		"in one that is not told": {odd, nil, ""},
		// The driver's folder is a link there, and each library in it another.
		"as on NixOS": {func(dir string) error {
			links := filepath.Join(dir, "nix/store/graphics-drivers/lib")
			return errors.Join(move(dir, "nix/store/nvidia-x11/lib"), os.MkdirAll(links, 0o755),
				os.MkdirAll(filepath.Join(dir, "run"), 0o755),
				os.Symlink("/nix/store/graphics-drivers", filepath.Join(dir, "run/opengl-driver")),
				os.Symlink("/nix/store/nvidia-x11/lib/libnvidia-ml.so.1", filepath.Join(links, "libnvidia-ml.so.1")))
		}, []string{"/run/opengl-driver/lib"}, "nix/store/nvidia-x11/lib"},
	} {
		t.Run(what, func(t *testing.T) {
			dir := driverRoot(t, load(t, "t4x1"))
			expect.NoError(t, tc.change(dir))
			got, err := LibraryPath(OpenOptions{DriverRoot: dir, LibrarySearchPaths: tc.search})
			if tc.want == "" {
				expect.Error(t, err, "NVIDIA_LIBRARY_SEARCH_PATHS")
				return
			}
			expect.NoError(t, err)
			expect.Equal(t, filepath.Join(dir, tc.want, name), got, "found")
		})
	}
}

func TestExplain(t *testing.T) {
	for ret, says := range map[nvml.Return]string{
		nvml.ERROR_DRIVER_NOT_LOADED:       "modprobe nvidia",
		nvml.ERROR_LIB_RM_VERSION_MISMATCH: "reboot the node or reload the module",
		nvml.ERROR_NO_PERMISSION:           "privileged",
		nvml.ERROR_UNKNOWN:                 "nvidia-smi",
	} {
		cause := fmt.Errorf("initialising NVML from x.so: %w", ret)
		err := explain("x.so", cause)
		if !errors.Is(err, ret) || !strings.Contains(err.Error(), says) || !strings.Contains(err.Error(), "x.so") {
			t.Errorf("error %q, want one of %q that names the library and says %q", err, ret, says)
		}
	}
}

// A file system that does not answer, as one over the network, holds nobody up, and is no sign of
// another driver.
func TestDriverRootThatHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := NewOpener(OpenOptions{DriverRoot: t.TempDir(), CallTimeout: time.Second})
		release := make(chan struct{})
		_, _ = bounded.Try(t.Context(), o.files, "looking at a file", func() (struct{}, error) {
			<-release
			return struct{}{}, nil
		})
		if _, err := o.Open(t.Context()); !errors.Is(err, bounded.ErrHung) ||
			!strings.Contains(err.Error(), "the driver root's file system") {
			t.Errorf("opening: %v", err)
		}
		o.loaded = &file{}
		if err := o.Replaced(t.Context()); !errors.Is(err, bounded.ErrHung) || errors.Is(err, ErrReplaced) {
			t.Errorf("whether it was replaced: %v", err)
		}
		close(release)
		synctest.Wait()
		expect.ErrorIs(t, o.Replaced(t.Context()), ErrReplaced)
	})
}

func TestDriverRootThroughALink(t *testing.T) {
	host := t.TempDir()
	expect.NoError(t, os.MkdirAll(filepath.Join(host, "run/nvidia/driver"), 0o755))
	for link, target := range map[string]string{"var": "/", "current": "run/nvidia/driver"} {
		expect.NoError(t, os.Symlink(target, filepath.Join(host, link)))
	}
	for _, tt := range []struct{ root, says string }{
		{"/var/run/nvidia/driver", "leads through the symbolic link /var to /:"},
		{"/current", "leads through the symbolic link /current to run/nvidia/driver:"},
		{"/run/nvidia/driver", "libnvidia-ml"},
		{"/not/there", "libnvidia-ml"},
	} {
		_, err := NewSource(SourceOptions{HostRoot: host, DriverRoot: tt.root}).Read(t.Context())
		expect.Error(t, err, tt.says)
	}
}

// countedLibrary counts how often it is initialised, as NVML does.
type countedLibrary struct {
	nvml.Interface
	initialised int
	count       nvml.Return
}

func (l *countedLibrary) Init() nvml.Return     { l.initialised++; return nvml.SUCCESS }
func (l *countedLibrary) Shutdown() nvml.Return { l.initialised--; return nvml.SUCCESS }

func (l *countedLibrary) DeviceGetCount() (int, nvml.Return) {
	if l.count != nvml.SUCCESS {
		return 0, l.count
	}
	return l.Interface.DeviceGetCount()
}

// Who asks and sets something of a GPU beside the readings goes on when one fails.
func TestDevicesOutliveAReadingThatFails(t *testing.T) {
	spec := load(t, "t4x1")
	for name, devices := range map[string]int{"without devices": 0, "with devices": 2} {
		t.Run(name, func(t *testing.T) {
			lib := &countedLibrary{Interface: spec.NVML(), initialised: 1}
			s := NewSource(SourceOptions{HostRoot: "/", DriverRoot: t.TempDir()})
			s.lib, s.reader = lib, NewReader(lib, Options{})
			machine, err := s.Read(t.Context())
			if err != nil || len(machine.GPUs) != 1 {
				t.Fatal(machine, err)
			}
			for range devices {
				_, err := s.Device(t.Context(), machine.GPUs[0].UUID)
				expect.NoError(t, err)
			}
			lib.count = nvml.ERROR_UNKNOWN
			if _, err := s.Read(t.Context()); err == nil {
				t.Fatal("the reading did not fail")
			}
			expect.Equal(t, min(devices, 1), lib.initialised, "times the library is initialised")
		})
	}
}

// What the driver root is on may hang, and its readings are of one goroutine that does more.
func TestSourceWhoseDriverRootHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := NewSource(SourceOptions{HostRoot: t.TempDir(), DriverRoot: "/run/nvidia/driver", CallTimeout: time.Second})
		release := make(chan struct{})
		defer close(release)
		_, _ = bounded.Try(t.Context(), s.opener.files, "looking at a file", func() (struct{}, error) {
			<-release
			return struct{}{}, nil
		})
		_, err := s.Read(t.Context())
		expect.ErrorIs(t, err, bounded.ErrHung)
	})
}
