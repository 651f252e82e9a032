package plugin

import (
	"cmp"
	"context"

	"github.com/gpushare/dra-driver-gpushare/cdi"
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
	// begun has the result of a reading that is under way.
	begun chan reading
}

// reading is what came of reading the cards once.
type reading struct {
	inventory *prepare.Inventory
	err       error
}

func newCardReader(opts CardOptions) *cardReader {
	return &cardReader{opts: opts, cards: source.New(opts.Options)}
}

// begin starts reading beside whatever else the caller has to do; the next read
// returns what came of it.
func (r *cardReader) begin(ctx context.Context) {
	r.begun = make(chan reading, 1)
	go func() {
		inventory, err := r.readNow(ctx)
		r.begun <- reading{inventory, err}
	}()
}

// read returns what the node has to hand out. It may be tried again after an
// error.
func (r *cardReader) read(ctx context.Context) (*prepare.Inventory, error) {
	if r.begun == nil {
		return r.readNow(ctx)
	}
	result := <-r.begun
	r.begun = nil
	return result.inventory, result.err
}

func (r *cardReader) readNow(ctx context.Context) (*prepare.Inventory, error) {
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
