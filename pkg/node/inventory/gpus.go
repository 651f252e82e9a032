// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"cmp"
	"context"
	"fmt"
	"path/filepath"
	"time"

	"github.com/gpushare/dra-driver-gpushare/cdi"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu/bounded"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu/nvml"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/prepare"
)

// Options say where the node's GPUs and their driver are. Paths are as
// the host sees them.
type Options struct {
	nvml.SourceOptions
	// DevRoot is the directory that has dev/nvidia*; by default DriverRoot.
	DevRoot string
	// HookPath is the program gpu-cdi-hook, or NVIDIA's nvidia-cdi-hook; empty for none.
	HookPath string
	// ReadInterval is how often the GPUs are read; 0 is DefaultReadInterval.
	ReadInterval time.Duration
}

// What instances of GPUs in MIG mode are offered.
const (
	// MIGStatic is those that somebody has made.
	MIGStatic = "static"
	// MIGDynamic is also those that can be made beside them; they are made for the claims that are allocated them.
	MIGDynamic = "dynamic"
)

// Reader reads the node's GPUs, with what gives them to containers. It is used by one goroutine, but for Watch.
type Reader struct {
	*nvml.Source
	opts Options
	// base makes the base edits: what the driver root is on may hang, too.
	base *bounded.Calls
	// begun has the result of a reading that is under way.
	begun chan reading
}

// reading is what came of reading the GPUs once.
type reading struct {
	inventory *prepare.Inventory
	err       error
}

// NewReader returns a Reader that has read nothing yet.
func NewReader(opts Options) *Reader {
	return &Reader{
		Source: nvml.NewSource(opts.SourceOptions), opts: opts,
		base: bounded.New("the driver root's file system", cmp.Or(opts.CallTimeout, nvml.DefaultCallTimeout)),
	}
}

// Begin starts reading beside whatever else the caller has to do; the next Read
// returns what came of it.
func (r *Reader) Begin(ctx context.Context) {
	r.begun = make(chan reading, 1)
	go func() {
		inventory, err := r.readNow(ctx)
		r.begun <- reading{inventory, err}
	}()
}

// Read returns what the node has to hand out. It may be tried again after an
// error.
func (r *Reader) Read(ctx context.Context) (*prepare.Inventory, error) {
	if r.begun == nil {
		return r.readNow(ctx)
	}
	select {
	case result := <-r.begun:
		r.begun = nil
		return result.inventory, result.err
	case <-ctx.Done():
		return nil, fmt.Errorf("reading the GPUs: %w", context.Cause(ctx))
	}
}

func (r *Reader) readNow(ctx context.Context) (*prepare.Inventory, error) {
	machine, err := r.Source.Read(ctx)
	if err != nil {
		return nil, err
	}
	devRoot := cmp.Or(r.opts.DevRoot, r.opts.DriverRoot)
	// What NewBase reads must not change under it, should it hang.
	toRead := *machine
	base, err := bounded.Try(ctx, r.base, "making the base CDI edits", func() (*cdi.Base, error) {
		return cdi.NewBase(ctx, &toRead, cdi.BaseOptions{
			DriverRoot:         r.opts.Local(r.opts.DriverRoot),
			HostDriverRoot:     r.opts.DriverRoot,
			DevRoot:            r.opts.Local(devRoot),
			HostDevRoot:        devRoot,
			LibrarySearchPaths: r.opts.LibrarySearchPaths,
			HostHookPath:       r.opts.HookPath,
			// It is beside the sysfs, wherever this process sees that.
			ProcFS: filepath.Join(filepath.Dir(cmp.Or(r.opts.SysFS, "/sys")), "proc"),
		})
	})
	if err != nil {
		return nil, err
	}
	machine.LeaveOut(withoutEdits(machine, base)...)
	return &prepare.Inventory{Machine: machine, Base: base}, nil
}

// withoutEdits are the GPUs that no container could be given.
func withoutEdits(m *gpu.Machine, base prepare.BaseEdits) []gpu.Fault {
	var faults []gpu.Fault
	for _, g := range m.GPUs {
		if _, err := base.GPU(g.UUID); err != nil {
			faults = append(faults, gpu.Fault{Index: g.Index, UUID: g.UUID, Reason: gpu.FaultUnreadable, Message: err.Error()})
		}
	}
	return faults
}
