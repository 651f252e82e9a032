// SPDX-License-Identifier: Apache-2.0

// Package source finds a node's cards: the real ones, through the driver on the
// host, or those of a simulated machine.
package source

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	gonvml "github.com/NVIDIA/go-nvml/pkg/nvml"
	"k8s.io/klog/v2"

	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu/nvml"
)

// Options say where the node's cards and their driver are. Paths are as the
// host sees them.
type Options struct {
	// HostRoot is where this process sees the host's root directory: "/" for a
	// process on the host, "/host" or the like in a container.
	HostRoot string
	// DriverRoot is the directory that the NVIDIA driver is installed in: "/",
	// or e.g. "/run/nvidia/driver" where a container installs it.
	DriverRoot string
	// LibraryPath is the NVML library; by default it is looked for in
	// DriverRoot.
	LibraryPath string
	// CallTimeout bounds each NVML call; 0 is the default of pkg/gpu/nvml.
	CallTimeout time.Duration
	// SimulatedMachine, if set, is the machine file of the cards to simulate
	// instead of reading real ones.
	SimulatedMachine string
	// NodeName tells the simulated cards of two nodes apart whose machine file
	// names no node.
	NodeName string
	// Simulator simulates SimulatedMachine; nil where the program cannot.
	Simulator Simulator
}

// Simulator returns an NVML with the cards of a machine file, and the root of the sysfs
// that shows them. It is a parameter because what NVML is simulated with has no place in
// a program for real nodes.
type Simulator func(file, node string) (lib gonvml.Interface, sysfs string, err error)

// errNoSimulator says that the program was built for real nodes.
var errNoSimulator = errors.New("this program simulates no GPUs: build it with -tags simulation, or unset " +
	"GPU_SIMULATED_MACHINE")

// Local is a path of the host as this process sees it.
func (o Options) Local(path string) string {
	if o.HostRoot == "/" {
		return path
	}
	return filepath.Join(o.HostRoot, strings.TrimPrefix(path, "/"))
}

// Source reads the node's cards, again and again. It is used by one goroutine at a
// time.
type Source struct {
	opts   Options
	opener *nvml.Opener
	// lib and reader are kept as long as they work: what a Reader remembers holds
	// for one initialisation of NVML.
	lib    gonvml.Interface
	reader *nvml.Reader
	// machine is the machine file, of simulated cards, that lib was made of.
	machine fs.FileInfo
	// sysfs is the root of the sysfs with the cards; a simulated machine brings its own.
	sysfs string
}

// New returns the source. Nothing is opened before the first Read.
func New(opts Options) *Source {
	libraryPath := opts.LibraryPath
	if libraryPath != "" {
		libraryPath = opts.Local(libraryPath)
	}
	return &Source{opts: opts, sysfs: "/sys", opener: nvml.NewOpener(nvml.OpenOptions{
		LibraryPath: libraryPath, DriverRoot: opts.Local(opts.DriverRoot), CallTimeout: opts.CallTimeout,
	})}
}

// ErrDriverReplaced is the cause of errors of Read and Changed that last for as long
// as this process does: its driver's library was replaced, and it has to start anew.
var ErrDriverReplaced = nvml.ErrReplaced

// Read reads the cards. It may be tried again after an error.
func (s *Source) Read(ctx context.Context) (*gpu.Machine, error) {
	if _, err := s.Changed(ctx); err != nil {
		return nil, err
	}
	if err := s.open(ctx); err != nil {
		return nil, err
	}
	machine, err := s.reader.Read(ctx)
	if err != nil {
		s.close(ctx)
		return nil, err
	}
	return machine, nil
}

// Changed looks at the driver's files, which takes microseconds, and says whether the
// cards should be read again now.
func (s *Source) Changed(ctx context.Context) (bool, error) {
	if err := s.opener.Replaced(ctx); err != nil {
		return false, err
	}
	if s.machine == nil {
		return false, nil
	}
	now, err := os.Stat(s.opts.Local(s.opts.SimulatedMachine))
	if err == nil && os.SameFile(now, s.machine) && now.ModTime().Equal(s.machine.ModTime()) &&
		now.Size() == s.machine.Size() {
		return false, nil
	}
	s.lib, s.reader, s.machine = nil, nil, nil
	return true, nil
}

func (s *Source) open(ctx context.Context) error {
	if s.lib != nil {
		return nil
	}
	o := s.opts
	if err := o.noLinks(o.DriverRoot); err != nil {
		return err
	}
	lib, err := s.openLibrary(ctx)
	if err != nil {
		return err
	}
	s.lib = lib
	s.reader = nvml.NewReader(lib, nvml.Options{CallTimeout: o.CallTimeout, SysFS: s.sysfs})
	return nil
}

func (s *Source) openLibrary(ctx context.Context) (gonvml.Interface, error) {
	if s.opts.SimulatedMachine == "" {
		return s.opener.Open(ctx)
	}
	if s.opts.Simulator == nil {
		return nil, errNoSimulator
	}
	file := s.opts.Local(s.opts.SimulatedMachine)
	// First, so that a change while it is read is seen.
	machine, err := os.Stat(file)
	if err != nil {
		return nil, fmt.Errorf("reading machine file: %w", err)
	}
	lib, sysfs, err := s.opts.Simulator(file, s.opts.NodeName)
	if err != nil {
		return nil, err
	}
	s.machine, s.sysfs = machine, sysfs
	s.opener.StandIn(ctx)
	return lib, nil
}

// close has the library initialised anew by the next reading, as after the kernel
// module was loaded again.
func (s *Source) close(ctx context.Context) {
	if s.reader.Hung() {
		return
	}
	if err := s.opener.Close(ctx, s.lib); err != nil {
		klog.FromContext(ctx).V(2).Info("NVML could not be shut down", "err", err)
	}
	s.lib, s.reader = nil, nil
}

// noLinks refuses a directory of the host with a symbolic link on the way. The CDI
// library resolves the links of what it finds, and takes a library that is then not
// below the directory for none of the driver's: containers would be without it, and
// nobody would be told.
func (o Options) noLinks(dir string) error {
	for path := filepath.Clean(dir); path != "/" && path != "."; path = filepath.Dir(path) {
		target, err := os.Readlink(o.Local(path))
		if err != nil {
			// No link, or not there: whoever opens it says so.
			continue
		}
		return fmt.Errorf("the driver root %s leads through the symbolic link %s to %s: set it to the directory itself", dir,
			path, target)
	}
	return nil
}
