// SPDX-License-Identifier: Apache-2.0

package nvml

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"k8s.io/klog/v2"

	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu/bounded"
)

// SourceOptions say where the node's GPUs and their driver are. Paths are as the
// host sees them.
type SourceOptions struct {
	// HostRoot is where this process sees the host's root directory: "/" for a
	// process on the host, "/host" or the like in a container.
	HostRoot string
	// DriverRoot is the directory that the NVIDIA driver is installed in: "/",
	// or e.g. "/run/nvidia/driver" where a container installs it.
	DriverRoot string
	// LibraryPath is the NVML library; by default it is looked for in
	// DriverRoot.
	LibraryPath string
	// LibrarySearchPaths are further directories, as seen from DriverRoot, with the
	// driver's libraries.
	LibrarySearchPaths []string
	// CallTimeout bounds each NVML call; 0 is DefaultCallTimeout.
	CallTimeout time.Duration
	// SysFS is where this process sees the sysfs that has the GPUs; empty is "/sys".
	SysFS string
	// Profiles has it read what GPUs in MIG mode can be cut into.
	Profiles bool
}

// Local is a path of the host as this process sees it.
func (o SourceOptions) Local(path string) string {
	if o.HostRoot == "/" {
		return path
	}
	return filepath.Join(o.HostRoot, strings.TrimPrefix(path, "/"))
}

// Source reads the node's GPUs, again and again. It is used by one goroutine at a
// time, but for Watch, which may run beside.
type Source struct {
	opts   SourceOptions
	opener *Opener
	events *Events
	// recoveries are what events and reader share.
	recoveries *Recoveries
	// lib and reader are kept as long as they work: what a Reader remembers holds
	// for one initialisation of NVML.
	lib    nvml.Interface
	reader *Reader
	// held says that the library stays initialised, for Devices.
	held bool
}

// NewSource returns the source. Nothing is opened before the first Read.
func NewSource(opts SourceOptions) *Source {
	open, recoveries := opts.open(), NewRecoveries()
	return &Source{
		opts: opts, opener: NewOpener(open), events: NewEvents(open, recoveries), recoveries: recoveries,
	}
}

// Uses returns what reads what the node's GPUs are used for, which may run beside a Source.
func (o SourceOptions) Uses() *Uses { return NewUses(o.open()) }

// Partitions returns what makes and destroys MIG instances, which may be used beside a Source.
func (o SourceOptions) Partitions() *Partitions { return NewPartitions(o.open()) }

func (o SourceOptions) open() OpenOptions {
	libraryPath := o.LibraryPath
	if libraryPath != "" {
		libraryPath = o.Local(libraryPath)
	}
	return OpenOptions{
		LibraryPath: libraryPath, DriverRoot: o.Local(o.DriverRoot), LibrarySearchPaths: o.LibrarySearchPaths,
		CallTimeout: o.CallTimeout, SysFS: o.SysFS,
	}
}

// Library is the NVML library, as this process sees it and as the host does. It is found again
// by each call.
func (o SourceOptions) Library() (local, onHost string, err error) {
	if local, err = LibraryPath(o.open()); err != nil {
		return "", "", err
	}
	// The name under which an upgrade leaves the library, not that of its version.
	if named := filepath.Join(filepath.Dir(local), LibraryName); local != LibraryName {
		if _, err := os.Stat(named); err == nil {
			local = named
		}
	}
	onHost = local
	if o.HostRoot != "/" && filepath.IsAbs(local) {
		onHost = "/" + strings.TrimPrefix(strings.TrimPrefix(local, filepath.Clean(o.HostRoot)), "/")
	}
	return local, onHost, nil
}

// Read reads the GPUs. It may be tried again after an error, but for ErrReplaced.
func (s *Source) Read(ctx context.Context) (*gpu.Machine, error) {
	if err := s.opener.Replaced(ctx); err != nil {
		return nil, err
	}
	kept := s.lib != nil
	machine, err := s.read(ctx)
	if err != nil || !kept || !noneAnswers(machine) {
		return machine, err
	}
	// Perhaps only to a library that was initialised before the driver was reloaded.
	s.close(ctx)
	return s.read(ctx)
}

func (s *Source) read(ctx context.Context) (*gpu.Machine, error) {
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

// noneAnswers reports whether there are GPUs, and all of them fail.
func noneAnswers(m *gpu.Machine) bool {
	return len(m.GPUs)+len(m.Partitioned) == 0 && len(m.Faults) > 0
}

// Check asks the GPUs of the last reading whether they are well, within a second. It is
// false if they cannot be asked before the next reading.
func (s *Source) Check(ctx context.Context) ([]gpu.Condition, bool) {
	if s.reader == nil {
		return nil, false
	}
	return s.reader.Check(ctx), true
}

// Device is a GPU of the last reading, for what is asked and set beside the readings. It is
// good for as long as this process lives: a reading that fails does not shut down the
// library under it. So later readings no longer recover from a kernel module that was
// reloaded in a way that Replaced does not see. See Device.
func (s *Source) Device(ctx context.Context, uuid string) (*Device, error) {
	if s.reader == nil {
		return nil, fmt.Errorf("GPU %s cannot be asked before the GPUs are read again", uuid)
	}
	if !s.held {
		if err := s.opener.Hold(ctx, s.lib); err != nil {
			return nil, err
		}
		s.held = true
	}
	return s.reader.Device(uuid)
}

// Watch tells the events of the node's GPUs until the context ends. See Events.
func (s *Source) Watch(ctx context.Context, tell func(gpu.Event)) error {
	return s.events.Watch(ctx, tell)
}

// Replaced is an ErrReplaced if the driver's library is no longer the one that is
// loaded. It looks at the driver's files, which takes microseconds. Any other error is that
// these do not answer.
func (s *Source) Replaced(ctx context.Context) error { return s.opener.Replaced(ctx) }

func (s *Source) open(ctx context.Context) error {
	if s.lib != nil {
		return nil
	}
	o := s.opts
	link, err := bounded.Try(ctx, s.opener.files, "looking at the driver root", func() (error, error) {
		return o.noLinks(), nil
	})
	if err = cmp.Or(err, link); err != nil {
		return err
	}
	lib, err := s.opener.Open(ctx)
	if err != nil {
		return err
	}
	s.lib = lib
	s.reader = NewReader(lib, Options{CallTimeout: o.CallTimeout, SysFS: o.SysFS,
		Profiles: o.Profiles, Recoveries: s.recoveries})
	return nil
}

// close has the library initialised again by the next reading, as after the kernel
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

// noLinks refuses a driver root with a symbolic link on the way. The CDI
// library resolves the links of what it finds, and takes a library that is then not
// below the directory for none of the driver's: containers would be without it, and
// nobody would be told.
func (o SourceOptions) noLinks() error {
	for path := filepath.Clean(o.DriverRoot); path != "/" && path != "."; path = filepath.Dir(path) {
		target, err := os.Readlink(o.Local(path))
		if err != nil {
			// No link, or not there: whoever opens it says so.
			continue
		}
		return fmt.Errorf("the driver root %s leads through the symbolic link %s to %s: set it to the directory itself",
			o.DriverRoot, path, target)
	}
	return nil
}
