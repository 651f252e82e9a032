// Package source finds a node's cards: the real ones, through the driver on the
// host, or those of a simulated machine.
package source

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	gonvml "github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu/nvml"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu/sim"
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
}

// Local is a path of the host as this process sees it.
func (o Options) Local(path string) string {
	if o.HostRoot == "/" {
		return path
	}
	return filepath.Join(o.HostRoot, strings.TrimPrefix(path, "/"))
}

// Source reads the node's cards. It is used by one goroutine at a time.
type Source struct {
	opts Options
	// lib is kept once it is initialised: NVML is not initialised twice.
	lib gonvml.Interface
}

// New returns the source. Nothing is opened before the first Read.
func New(opts Options) *Source { return &Source{opts: opts} }

// Read reads the cards and returns the library that it read them from, which
// stays the same. It may be tried again after an error.
func (s *Source) Read(ctx context.Context) (*gpu.Machine, gonvml.Interface, error) {
	if err := s.open(ctx); err != nil {
		return nil, nil, err
	}
	machine, err := nvml.Read(ctx, s.lib, nvml.Options{CallTimeout: s.opts.CallTimeout, SysFS: s.sysfs()})
	if err != nil {
		return nil, nil, err
	}
	return machine, s.lib, nil
}

func (s *Source) open(ctx context.Context) error {
	if s.lib != nil {
		return nil
	}
	o := s.opts
	if err := o.noLinks(o.DriverRoot); err != nil {
		return err
	}
	if o.SimulatedMachine != "" {
		spec, err := sim.Load(o.Local(o.SimulatedMachine))
		if err != nil {
			return err
		}
		if spec.Node == "" {
			spec = spec.ForNode(o.NodeName)
		}
		s.lib = spec.NVML()
		return nil
	}
	libraryPath := o.LibraryPath
	if libraryPath != "" {
		libraryPath = o.Local(libraryPath)
	}
	lib, err := nvml.Open(ctx, nvml.OpenOptions{LibraryPath: libraryPath, DriverRoot: o.Local(o.DriverRoot), CallTimeout: o.CallTimeout})
	if err != nil {
		return err
	}
	s.lib = lib
	return nil
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
		return fmt.Errorf("the driver root %s leads through the symbolic link %s to %s: set it to the directory itself", dir, path, target)
	}
	return nil
}

// sysfs is the root of the sysfs with the cards; a simulated machine brings
// its own.
func (s *Source) sysfs() string {
	if s.opts.SimulatedMachine != "" {
		return filepath.Join(s.opts.Local(filepath.Dir(s.opts.SimulatedMachine)), sim.SysDir)
	}
	return "/sys"
}
