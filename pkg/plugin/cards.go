package plugin

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/gpushare/dra-driver-gpushare/cdi"
	"github.com/gpushare/dra-driver-gpushare/pkg/atomicfile"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu/source"
	"github.com/gpushare/dra-driver-gpushare/pkg/prepare"
)

// CardOptions say where the node's cards and their driver are. Paths are as
// the host sees them.
type CardOptions struct {
	source.Options
	// DevRoot is the directory that has dev/nvidia*; by default DriverRoot.
	DevRoot string
	// LibrarySearchPaths are further directories below DriverRoot with the
	// driver's libraries.
	LibrarySearchPaths []string
	// HookPath is the program gpu-cdi-hook, or NVIDIA's nvidia-cdi-hook; empty for none.
	HookPath string
}

// cardReader reads the node's cards. Its read is called from one goroutine.
type cardReader struct {
	opts  CardOptions
	cards *source.Source
}

func newCardReader(opts CardOptions) *cardReader {
	return &cardReader{opts: opts, cards: source.New(opts.Options)}
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
		DriverRoot:         r.opts.Local(r.opts.DriverRoot),
		HostDriverRoot:     r.opts.DriverRoot,
		DevRoot:            r.opts.Local(devRoot),
		HostDevRoot:        devRoot,
		LibrarySearchPaths: r.opts.LibrarySearchPaths,
		HostHookPath:       r.opts.HookPath,
	})
	if err != nil {
		return nil, err
	}
	return &prepare.Inventory{Machine: machine, Base: base}, nil
}

// InstallHook copies a program from the image to the plugin's directory, where
// the host's container runtime can start it, and returns that path.
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
