package plugin

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	gonvml "github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/gpushare/dra-driver-gpushare/cdi"
	"github.com/gpushare/dra-driver-gpushare/pkg/atomicfile"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu/nvml"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu/sim"
	"github.com/gpushare/dra-driver-gpushare/pkg/prepare"
)

// CardOptions say where the node's cards and their driver are. Paths are as
// the host sees them.
type CardOptions struct {
	// HostRoot is where this process sees the host's root directory: "/" for a
	// process on the host, "/host" or the like in a container.
	HostRoot string
	// DriverRoot is the directory that the NVIDIA driver is installed in: "/",
	// or e.g. "/run/nvidia/driver" where a container installs it.
	DriverRoot string
	// DevRoot is the directory that has dev/nvidia*; by default DriverRoot.
	DevRoot string
	// LibraryPath is the NVML library; by default it is looked for in
	// DriverRoot.
	LibraryPath string
	// LibrarySearchPaths are further directories below DriverRoot with the
	// driver's libraries.
	LibrarySearchPaths []string
	// CallTimeout bounds each NVML call; 0 is the default of pkg/gpu/nvml.
	CallTimeout time.Duration
	// SimulatedMachine, if set, is the machine file of the cards to simulate
	// instead of reading real ones.
	SimulatedMachine string
	// NodeName tells the simulated cards of two nodes apart whose machine file
	// names no node.
	NodeName string
	// HookPath is the program nvidia-cdi-hook; empty for none.
	HookPath string
}

// cardReader reads the node's cards. Its read is called from one goroutine.
type cardReader struct {
	CardOptions
	// lib is kept once it is initialised: NVML is not initialised twice.
	lib gonvml.Interface
}

// read returns what the node has to hand out. It may be tried again after an
// error.
func (r *cardReader) read(ctx context.Context) (*prepare.Inventory, error) {
	if err := r.open(ctx); err != nil {
		return nil, err
	}
	machine, err := nvml.Read(ctx, r.lib, nvml.Options{CallTimeout: r.CallTimeout, SysFS: r.sysfs()})
	if err != nil {
		return nil, err
	}
	base, err := cdi.NewBase(ctx, machine.GPUs, cdi.BaseOptions{
		NVML:               r.lib,
		DriverRoot:         r.local(r.DriverRoot),
		HostDriverRoot:     r.DriverRoot,
		DevRoot:            r.local(r.devRoot()),
		HostDevRoot:        r.devRoot(),
		LibrarySearchPaths: r.LibrarySearchPaths,
		HostHookPath:       r.HookPath,
	})
	if err != nil {
		return nil, err
	}
	return &prepare.Inventory{Machine: machine, Base: base}, nil
}

func (r *cardReader) open(ctx context.Context) error {
	if r.lib != nil {
		return nil
	}
	if r.SimulatedMachine != "" {
		spec, err := sim.Load(r.local(r.SimulatedMachine))
		if err != nil {
			return err
		}
		if spec.Node == "" {
			spec = spec.ForNode(r.NodeName)
		}
		r.lib = spec.NVML()
		return nil
	}
	libraryPath := r.LibraryPath
	if libraryPath != "" {
		libraryPath = r.local(libraryPath)
	}
	lib, err := nvml.Open(ctx, nvml.OpenOptions{LibraryPath: libraryPath, DriverRoot: r.local(r.DriverRoot), CallTimeout: r.CallTimeout})
	if err != nil {
		return err
	}
	r.lib = lib
	return nil
}

func (r *cardReader) devRoot() string {
	if r.DevRoot != "" {
		return r.DevRoot
	}
	return r.DriverRoot
}

// sysfs is the root of the sysfs with the cards; a simulated machine brings
// its own.
func (r *cardReader) sysfs() string {
	if r.SimulatedMachine != "" {
		return filepath.Join(r.local(filepath.Dir(r.SimulatedMachine)), sim.SysDir)
	}
	return "/sys"
}

// local is a path of the host as this process sees it.
func (r *cardReader) local(path string) string {
	if r.HostRoot == "/" {
		return path
	}
	return filepath.Join(r.HostRoot, strings.TrimPrefix(path, "/"))
}

// InstallHook copies the program nvidia-cdi-hook from the image to the
// plugin's directory, where the host's container runtime can start it, and
// returns that path.
func InstallHook(source, pluginDir string) (string, error) {
	if err := os.MkdirAll(pluginDir, 0o750); err != nil {
		return "", fmt.Errorf("make the plugin directory: %w", err)
	}
	program, err := os.ReadFile(source)
	if errors.Is(err, os.ErrNotExist) {
		return "", fmt.Errorf("%s does not exist: the image comes with it; where the plugin runs without the image, set the hook's path, or an empty one to do without", source)
	}
	if err != nil {
		return "", err
	}
	target := filepath.Join(pluginDir, filepath.Base(source))
	if err := atomicfile.Write(target, program, 0o755, false); err != nil {
		return "", fmt.Errorf("install the CDI hook for the container runtime: %w", err)
	}
	return target, nil
}
