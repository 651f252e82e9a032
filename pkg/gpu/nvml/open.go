// SPDX-License-Identifier: Apache-2.0

// Package nvml reads a node's GPUs through NVML, NVIDIA's management library,
// into a gpu.Machine.
//
// The library is handed around as go-nvml's nvml.Interface: that of the driver, from
// Open, or in unit tests a mock, from tests/standins/sim.
package nvml

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/dl"
	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/gpushare/dra-driver-gpushare/internal/driverlib"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu/bounded"
)

// LibraryName is the library's name in every driver installation.
const LibraryName = driverlib.NVML

// sayWhere is what to do where the driver is elsewhere.
const sayWhere = "say where it is by NVIDIA_DRIVER_ROOT or NVIDIA_LIBRARY_SEARCH_PATHS in the ConfigMap " +
	"gpu-kubelet-plugin beside the driver's pods"

// OpenOptions say where the driver is.
type OpenOptions struct {
	// LibraryPath is the NVML library. If empty, it is looked for in
	// DriverRoot.
	LibraryPath string
	// DriverRoot is the directory that the driver is installed in, as this
	// process sees it, e.g. "/host/run/nvidia/driver". If it is empty or "/",
	// the dynamic loader looks for the library in its own way.
	DriverRoot string
	// LibrarySearchPaths are further directories, as seen from DriverRoot, in which to look for the library.
	LibrarySearchPaths []string
	// SysFS is the root of the sysfs that has the kernel module; empty is "/sys".
	SysFS string
	// CallTimeout bounds the initialisation; 0 is DefaultCallTimeout.
	CallTimeout time.Duration
}

// Open is NewOpener(opts).Open(ctx), for those who open the library once.
func Open(ctx context.Context, opts OpenOptions) (nvml.Interface, error) {
	return NewOpener(opts).Open(ctx)
}

// Opener opens the driver's NVML library, again and again if it has to. It is used
// by one goroutine at a time.
type Opener struct {
	opts  OpenOptions
	calls *bounded.Calls
	// files looks at the driver's files: what they are on may hang.
	files *bounded.Calls
	// loaded is the library that this process has loaded. searched is when it was looked for last,
	// around what its directory was then.
	loaded   *file
	searched time.Time
	around   file
	// module is the kernel module for which it was initialised last.
	module *file
}

// NewOpener returns an Opener. Nothing is opened before its Open.
func NewOpener(opts OpenOptions) *Opener {
	return &Opener{
		opts: opts, calls: newCalls(opts.CallTimeout), files: DriverFiles(opts.CallTimeout),
	}
}

// DriverFiles are for calls that look at the driver's files.
func DriverFiles(timeout time.Duration) *bounded.Calls {
	return bounded.New("the driver root's file system", orDefault(timeout))
}

// located is the NVML library, or why there is none.
type located struct {
	file *file
	err  error
}

func locate(opts OpenOptions) located {
	path, err := LibraryPath(opts)
	if err != nil {
		return located{err: err}
	}
	return located{file: fileAt(path)}
}

// findAgain looks for the library. Most looks are at the one that is loaded and at its directory, since a search takes
// some hundred times longer. hung is that their file system does not answer.
func (o *Opener) findAgain(ctx context.Context) (found located, hung error) {
	loaded, around := *o.loaded, o.around
	if time.Since(o.searched) < searchAgain {
		same, err := bounded.Try(ctx, o.files, "looking at the NVML library", func() (bool, error) {
			return *fileAt(loaded.path) == loaded && *fileAt(filepath.Dir(loaded.path)) == around, nil
		})
		if err != nil || same {
			return located{file: &loaded}, err
		}
	}
	type searched struct {
		located
		around file
	}
	s, err := bounded.Try(ctx, o.files, "looking for the NVML library", func() (searched, error) {
		// First, so that what changes meanwhile is seen by the next look.
		around := *fileAt(filepath.Dir(loaded.path))
		return searched{locate(o.opts), around}, nil
	})
	// One that is found beside the loaded one is to be found by each look.
	if err == nil && s.err == nil && *s.file == loaded {
		o.searched, o.around = time.Now(), s.around
	}
	return s.located, err
}

// searchAgain is how often the library is looked for in all of the driver root. What replaces it changes the
// library, or its directory; that one was installed elsewhere beside it is seen so late.
const searchAgain = time.Minute

// Open loads and initialises the driver's NVML library. The caller shuts it
// down (Close) when nothing uses it any more. The library counts how often
// it is initialised, so others may initialise and shut it down in between.
//
// An error says which library was tried and what the user can do. Open may be
// tried again after an error. One that hangs is waited for before it is.
func (o *Opener) Open(ctx context.Context) (nvml.Interface, error) {
	found, err := bounded.Try(ctx, o.files, "looking for the NVML library", func() (located, error) {
		return locate(o.opts), nil
	})
	if err = cmp.Or(err, found.err); err != nil {
		return nil, err
	}
	path := found.file.path
	lib := nvml.New(nvml.WithLibraryPath(path))
	if o.loaded == nil {
		o.loaded = found.file
	}
	_, err = bounded.Try(ctx, o.calls, "initialising NVML from "+path, func() (struct{}, error) {
		return struct{}{}, initialise(lib, path)
	})
	if err != nil {
		return nil, explain(path, err)
	}
	o.module = o.moduleNow()
	return lib, nil
}

// Close shuts the library down. It must not be called while a call hangs in it.
func (o *Opener) Close(ctx context.Context, lib nvml.Interface) error {
	return do(ctx, o.calls, "shutting NVML down", lib.Shutdown)
}

// Hold has an initialised library stay so for as long as this process lives, however often
// it is shut down.
func (o *Opener) Hold(ctx context.Context, lib nvml.Interface) error {
	return do(ctx, o.calls, "holding NVML", lib.Init)
}

// ErrReplaced says that the driver's library is no longer the one that this process
// has loaded. No process can change from one to the other: it has to restart.
var ErrReplaced = errors.New("the NVIDIA driver was changed")

// Replaced is an ErrReplaced if the driver was upgraded, removed or installed again
// since its library was loaded, or its kernel module was reloaded since the library was
// initialised. It looks at the files only. Any other error is that these do not answer.
func (o *Opener) Replaced(ctx context.Context) error {
	if o.loaded == nil {
		return nil
	}
	found, err := o.findAgain(ctx)
	switch {
	case err != nil:
		return err
	case found.err != nil:
		return fmt.Errorf("%w: %w", ErrReplaced, found.err)
	case *found.file != *o.loaded:
		return fmt.Errorf("%w: %s is not what was loaded from %s", ErrReplaced, found.file.path, o.loaded.path)
	}
	if now := o.moduleNow(); o.module != nil && *now != *o.module {
		return fmt.Errorf("%w: its kernel module was unloaded or reloaded, as %s tells", ErrReplaced, now.path)
	}
	return nil
}

// moduleNow tells the kernel module that is loaded from one that is loaded later: sysfs
// never gives two the same inode. Times say nothing there, they are those of a look.
func (o *Opener) moduleNow() *file {
	at := fileAt(filepath.Join(cmp.Or(o.opts.SysFS, "/sys"), "module", "nvidia"))
	return &file{path: at.path, dev: at.dev, inode: at.inode}
}

// file is a file at a path, as far as it can be told from another one there.
type file struct {
	path       string
	dev, inode uint64
	size       int64
	changed    time.Time
}

// fileAt is the file that path leads to. A path without a directory is looked for
// by the dynamic loader, so that nothing but the path is known of it.
func fileAt(path string) *file {
	f := &file{path: path}
	info, err := os.Stat(path)
	if err != nil {
		return f
	}
	f.size, f.changed = info.Size(), info.ModTime()
	if stat, ok := info.Sys().(*syscall.Stat_t); ok {
		f.dev, f.inode = stat.Dev, stat.Ino
	}
	return f
}

// needed are the functions without which no GPU can be read. go-nvml ends the
// process where it calls one that the library does not have. Of some it knows
// several versions, and takes what there is.
var needed = [][]string{
	{"nvmlInit", "nvmlInit_v2"}, {"nvmlShutdown"}, {"nvmlErrorString"}, {"nvmlSystemGetDriverVersion"},
	{"nvmlDeviceGetCount", "nvmlDeviceGetCount_v2"}, {"nvmlDeviceGetHandleByIndex", "nvmlDeviceGetHandleByIndex_v2"},
	{"nvmlDeviceGetPciInfo", "nvmlDeviceGetPciInfo_v2", "nvmlDeviceGetPciInfo_v3"},
	{"nvmlDeviceGetUUID"}, {"nvmlDeviceGetMinorNumber"}, {"nvmlDeviceGetName"}, {"nvmlDeviceGetMemoryInfo"},
}

// initialise initialises the library at path, if it has what is needed.
func initialise(lib nvml.Interface, path string) error {
	library := dl.New(path, dl.RTLD_LAZY)
	if err := library.Open(); err != nil {
		return fmt.Errorf("%w (%w)", nvml.ERROR_LIBRARY_NOT_FOUND, err)
	}
	defer library.Close() //nolint:errcheck // It stays loaded by lib, or not at all.
	for _, versions := range needed {
		if !slices.ContainsFunc(versions, func(name string) bool { return library.Lookup(name) == nil }) {
			return fmt.Errorf("%w: the library has no %s", nvml.ERROR_FUNCTION_NOT_FOUND, versions[0])
		}
	}
	if ret := lib.Init(); ret != nvml.SUCCESS {
		return ret
	}
	return nil
}

// LibraryPath is where the NVML library is; LibraryName where the dynamic loader finds it.
func LibraryPath(opts OpenOptions) (string, error) {
	switch {
	case opts.LibraryPath != "":
		return opts.LibraryPath, nil
	case len(opts.LibrarySearchPaths) == 0 && (opts.DriverRoot == "" || opts.DriverRoot == "/"):
		return LibraryName, nil
	}
	root := cmp.Or(opts.DriverRoot, "/")
	for _, dir := range driverlib.Dirs(root, opts.LibrarySearchPaths) {
		if found, err := filepath.EvalSymlinks(filepath.Join(dir, LibraryName)); err == nil {
			return found, nil
		}
	}
	named := append(slices.Clone(opts.LibrarySearchPaths), "the usual directories and those of ld.so.conf")
	return "", fmt.Errorf("no NVIDIA driver: looking for %s in the driver root %s: it is not in %s: install the driver, "+
		"or "+sayWhere, LibraryName, root, strings.Join(named, ", "))
}

// explain adds to an error of nvmlInit what the user can do.
func explain(path string, err error) error {
	switch {
	case errors.Is(err, nvml.ERROR_LIBRARY_NOT_FOUND):
		return fmt.Errorf("no NVIDIA driver: %w: install the driver, or "+sayWhere, err)
	case errors.Is(err, nvml.ERROR_FUNCTION_NOT_FOUND):
		return fmt.Errorf("%w: %s is no NVML, or of a driver that is too old or not fully installed", err, path)
	case errors.Is(err, nvml.ERROR_DRIVER_NOT_LOADED):
		return fmt.Errorf("%w: the NVIDIA kernel module is not loaded: load it (nvidia-smi or modprobe nvidia) and see "+
			"the kernel log if that fails", err)
	case errors.Is(err, nvml.ERROR_LIB_RM_VERSION_MISMATCH):
		return fmt.Errorf("%w: the NVIDIA kernel module is of another version than the library, as after an upgrade: "+
			"reboot the node or reload the module", err)
	case errors.Is(err, nvml.ERROR_NO_PERMISSION):
		return fmt.Errorf("%w: this process may not use the NVIDIA device nodes: it has to run privileged", err)
	}
	return fmt.Errorf("%w: see whether nvidia-smi works on the node", err)
}
