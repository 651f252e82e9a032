package plugin

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/gpushare/dra-driver-gpushare/cdi"
	"github.com/gpushare/dra-driver-gpushare/pkg/atomicfile"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu/source"
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
	opts  CardOptions
	where source.Options
	cards *source.Source
}

func newCardReader(opts CardOptions) *cardReader {
	where := source.Options{
		HostRoot:         opts.HostRoot,
		DriverRoot:       opts.DriverRoot,
		LibraryPath:      opts.LibraryPath,
		CallTimeout:      opts.CallTimeout,
		SimulatedMachine: opts.SimulatedMachine,
		NodeName:         opts.NodeName,
	}
	return &cardReader{opts: opts, where: where, cards: source.New(where)}
}

// read returns what the node has to hand out. It may be tried again after an
// error.
func (r *cardReader) read(ctx context.Context) (*prepare.Inventory, error) {
	machine, lib, err := r.cards.Read(ctx)
	if err != nil {
		return nil, err
	}
	devRoot := cmp.Or(r.opts.DevRoot, r.opts.DriverRoot)
	base, err := cdi.NewBase(ctx, machine.GPUs, cdi.BaseOptions{
		NVML:               lib,
		DriverRoot:         r.where.Local(r.opts.DriverRoot),
		HostDriverRoot:     r.opts.DriverRoot,
		DevRoot:            r.where.Local(devRoot),
		HostDevRoot:        devRoot,
		LibrarySearchPaths: r.opts.LibrarySearchPaths,
		HostHookPath:       r.opts.HookPath,
	})
	if err != nil {
		return nil, err
	}
	return &prepare.Inventory{Machine: machine, Base: base}, nil
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
