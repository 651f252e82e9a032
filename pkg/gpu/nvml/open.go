// Package nvml reads a node's cards through NVML, NVIDIA's management library,
// into a gpu.Machine.
//
// The library is handed around as go-nvml's nvml.Interface: the driver's own,
// from Open, or a simulated one, from pkg/gpu/sim.
package nvml

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/dl"
	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/NVIDIA/nvidia-container-toolkit/pkg/lookup"
	"k8s.io/klog/v2"

	"github.com/gpushare/dra-driver-gpushare/internal/toolkitlog"
)

// libraryName is the library's name in every driver installation.
const libraryName = "libnvidia-ml.so.1"

// OpenOptions say where the driver is.
type OpenOptions struct {
	// LibraryPath is the NVML library. If empty, it is looked for in
	// DriverRoot.
	LibraryPath string
	// DriverRoot is the directory that the driver is installed in, as this
	// process sees it, e.g. "/host/run/nvidia/driver". If it is empty or "/",
	// the dynamic loader looks for the library in its own way.
	DriverRoot string
	// CallTimeout bounds the initialisation; 0 is DefaultCallTimeout.
	CallTimeout time.Duration
}

// Open loads and initialises the driver's NVML library. The caller shuts it
// down (Shutdown) when nothing uses it any more. The library counts how often
// it is initialised, so others may initialise and shut it down in between.
//
// An error says which library was tried and what the user can do. Open may be
// tried again after an error.
func Open(ctx context.Context, opts OpenOptions) (nvml.Interface, error) {
	path, err := libraryPath(ctx, opts)
	if err != nil {
		return nil, err
	}
	lib := nvml.New(nvml.WithLibraryPath(path))
	c := &calls{timeout: orDefault(opts.CallTimeout)}
	_, err = ask(ctx, c, "initialising NVML from "+path, func() (struct{}, nvml.Return) {
		return struct{}{}, lib.Init()
	})
	if err != nil {
		return nil, explain(path, err)
	}
	return lib, nil
}

func orDefault(timeout time.Duration) time.Duration {
	if timeout == 0 {
		return DefaultCallTimeout
	}
	return timeout
}

func libraryPath(ctx context.Context, opts OpenOptions) (string, error) {
	switch {
	case opts.LibraryPath != "":
		return opts.LibraryPath, nil
	case opts.DriverRoot == "" || opts.DriverRoot == "/":
		return libraryName, nil
	}
	locator := lookup.NewLibraryLocator(
		lookup.WithRoot(opts.DriverRoot),
		lookup.WithLogger(toolkitlog.New(klog.FromContext(ctx))),
	)
	found, err := locator.Locate(libraryName)
	if err != nil {
		return "", fmt.Errorf("no NVIDIA driver: looking for %s in the driver root %s: %w: "+
			"install the driver, or point the driver root or the NVML library path at it", libraryName, opts.DriverRoot, err)
	}
	return found[0], nil
}

// explain adds to an error of nvmlInit what the user can do.
func explain(path string, err error) error {
	switch {
	case errors.Is(err, nvml.ERROR_LIBRARY_NOT_FOUND):
		return fmt.Errorf("no NVIDIA driver: %w (%s): "+
			"install the driver, or point the driver root or the NVML library path at it", err, loadError(path))
	case errors.Is(err, nvml.ERROR_DRIVER_NOT_LOADED):
		return fmt.Errorf("%w: the NVIDIA kernel module is not loaded: load it (nvidia-smi or modprobe nvidia) and see the kernel log if that fails", err)
	case errors.Is(err, nvml.ERROR_LIB_RM_VERSION_MISMATCH):
		return fmt.Errorf("%w: the NVIDIA kernel module is of another version than the library, as after an upgrade: reboot the node or reload the module", err)
	case errors.Is(err, nvml.ERROR_NO_PERMISSION):
		return fmt.Errorf("%w: this process may not use the NVIDIA device nodes: it has to run privileged", err)
	}
	return fmt.Errorf("%w: see whether nvidia-smi works on the node", err)
}

// loadError is what the dynamic loader says about a library that go-nvml could
// not load; go-nvml itself drops it.
func loadError(path string) string {
	library := dl.New(path, dl.RTLD_LAZY)
	if err := library.Open(); err != nil {
		return err.Error()
	}
	// It can be loaded by now; the next attempt will tell.
	_ = library.Close()
	return "it could not be loaded at first"
}
