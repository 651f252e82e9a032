// SPDX-License-Identifier: Apache-2.0

package nvml

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/NVIDIA/go-nvlib/pkg/nvlib/device"
	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"k8s.io/klog/v2"

	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu/bounded"
)

// Options are how to read. The zero value is valid.
type Options struct {
	// CallTimeout bounds each NVML call; 0 is DefaultCallTimeout.
	CallTimeout time.Duration
	// SysFS is the root of the sysfs that has the GPUs; empty is "/sys".
	SysFS string
	// Profiles has the kinds of instances read into which GPUs in MIG mode can be cut.
	Profiles bool
	// ProcFS is the root of the procfs that has the host's memory and what the
	// kernel module tells about GPUs; empty is "/proc".
	ProcFS string
	// Recoveries says of which GPUs Check need not ask for the recovery action each time; nil of none.
	Recoveries *Recoveries
}

// Reader reads the GPUs again and again, and remembers what it has to between
// two readings: which calls have not come back yet, and what a GPU told of
// itself before. It is used by one goroutine at a time.
type Reader struct {
	lib     nvml.Interface
	devices device.Interface
	opts    Options
	// system makes the calls that concern no single GPU.
	system *bounded.Calls
	// cuda is the CUDA version as read last.
	cuda int
	// GPUs are those of the last reading, in NVML's order.
	gpus []*cachedGPU
	// tellsFields says that the library tells fields.
	tellsFields bool
	// apart are the calls of Devices, by UUID.
	apart map[string]*bounded.Calls
}

// NewReader returns a reader of the library's GPUs. The library must be
// initialised (see Open) and stay so as long as the Reader is used.
func NewReader(lib nvml.Interface, opts Options) *Reader {
	opts.SysFS, opts.ProcFS = cmp.Or(opts.SysFS, "/sys"), cmp.Or(opts.ProcFS, "/proc")
	r := &Reader{lib: lib, devices: device.New(lib), opts: opts, system: newCalls(opts.CallTimeout)}
	r.tellsFields = r.has("nvmlDeviceGetFieldValues")
	return r
}

// Read is NewReader(lib, opts).Read(ctx), for those who read once.
func Read(ctx context.Context, lib nvml.Interface, opts Options) (*gpu.Machine, error) {
	return NewReader(lib, opts).Read(ctx)
}

// Read reads all GPUs. Reading again gives the same machine as long as nothing
// has changed.
//
// A GPU that cannot be used – it fails to tell a property, is lost or hangs – is
// left out of GPUs and described in Faults; it does not affect the other GPUs. One in
// MIG mode is in Partitioned, with the instances that it is cut into. One that is for a
// screen alone is nowhere, but keeps its number. A property is empty
// only where driver or GPU do not have it, which holds for all GPUs of a model; so all of
// them have the same properties. One that a GPU told before, and fails to tell now, is taken
// from before, unless the GPU is of no use without it. Only what concerns all GPUs is an
// error: the driver version, the number of GPUs, a cancelled context.
//
// Two GPUs that contradict each other about the lanes between them are linked
// by the smaller number, and described in LinkFaults. A GPU that lacks lanes to
// NVSwitches which others of its model have is described in LaneFaults, one that the
// fabric manager has not connected to them in FabricFaults.
//
// GPUs are read side by side, so that those that hang cost one CallTimeout
// together. A GPU with a call that hangs is not asked again, and stays left out,
// until that call has returned, if ever.
//
// GPUs are numbered in the order of their PCI addresses. A GPU whose address
// cannot be read, nor could be before, takes the number at which NVML lists it,
// which on all known drivers is the same.
func (r *Reader) Read(ctx context.Context) (*gpu.Machine, error) {
	driver, err := ask(ctx, r.system, "reading the driver version", r.lib.SystemGetDriverVersion)
	if err != nil {
		return nil, unusable(err)
	}
	if err := r.readCUDAVersion(ctx); err != nil {
		return nil, unusable(err)
	}
	count, err := ask(ctx, r.system, "counting the GPUs", r.lib.DeviceGetCount)
	if err != nil {
		return nil, unusable(err)
	}

	r.readGPUs(ctx, count)
	gpus := slices.Clone(r.gpus)
	number(gpus)
	machine := &gpu.Machine{DriverVersion: driver, CUDADriverVersion: cudaVersion(r.cuda)}
	machine.Links, machine.LinkFaults = r.readLinks(ctx, usable(gpus))
	machine.LaneFaults, machine.FabricFaults = laneFaults(usable(gpus)), fabricFaults(gpus)
	for _, c := range gpus {
		switch {
		case c.display:
		case c.failure != nil:
			machine.Faults = append(machine.Faults, c.fault())
		case c.gpu.MIG.Enabled:
			machine.Partitioned = append(machine.Partitioned, gpu.Partitioned{GPU: c.gpu, Instances: c.instances,
				Profiles: r.profilesOf(c)})
		default:
			machine.GPUs = append(machine.GPUs, c.gpu)
		}
	}
	if err := context.Cause(ctx); err != nil {
		return nil, fmt.Errorf("reading the GPUs: %w", err)
	}
	return machine, nil
}

// Hung reports whether a call of the last reading, or of an earlier one, has not
// returned yet. The library must not be shut down then: who waits for it would
// wait for what hangs.
func (r *Reader) Hung() bool {
	for _, calls := range r.apart {
		if calls.Hung() != nil {
			return true
		}
	}
	return r.system.Hung() != nil || slices.ContainsFunc(r.gpus, func(c *cachedGPU) bool {
		return c.Hung() != nil ||
			c.peers.Hung() != nil
	})
}

// readCUDAVersion leaves the version empty where the driver has none to tell.
func (r *Reader) readCUDAVersion(ctx context.Context) error {
	if !r.has("nvmlSystemGetCudaDriverVersion") {
		return nil
	}
	version, err := ask(ctx, r.system, "reading the CUDA version", r.lib.SystemGetCudaDriverVersion)
	switch {
	case err == nil:
		r.cuda = version
	case unsupported(err):
		r.cuda = 0
	case gone(err) || r.cuda == 0:
		return err
	default:
		klog.FromContext(ctx).V(4).Info("The driver does not tell its CUDA version now, going on with what it told before",
			"err", err)
	}
	return nil
}

// readGPUs reads the GPUs side by side.
func (r *Reader) readGPUs(ctx context.Context, count int) {
	before := r.gpus
	r.gpus = make([]*cachedGPU, count)
	var wg sync.WaitGroup
	for i := range r.gpus {
		c := newGPU(r.opts.CallTimeout)
		if i < len(before) {
			c = before[i].again()
		}
		r.gpus[i] = c
		if hung := c.Hung(); hung != nil {
			// Also one that hung in Check, after a reading that went well.
			c.failure = hung
			continue
		}
		wg.Go(func() { c.failure = r.fill(ctx, c, i) })
	}
	wg.Wait()
}

func unusable(err error) error {
	return fmt.Errorf("NVML does not work: %w: see whether nvidia-smi works on the node", err)
}

// has reports whether the library has that function. A call to one that it does
// not have would end the process.
func (r *Reader) has(function string) bool {
	return r.lib.Extensions().LookupSymbol(function) == nil
}

// number gives the GPUs, which come in NVML's order, their indices, and sorts
// them by it.
func number(gpus []*cachedGPU) {
	located := make([]*cachedGPU, 0, len(gpus))
	for _, c := range gpus {
		if c.located {
			located = append(located, c)
		}
	}
	slices.SortStableFunc(located, func(a, b *cachedGPU) int { return a.address.compare(b.address) })
	for i := range gpus {
		if gpus[i].located {
			gpus[i], located = located[0], located[1:]
		}
		gpus[i].gpu.Index = i
	}
}

// usable are the GPUs that can be handed out as a whole.
func usable(gpus []*cachedGPU) []*cachedGPU {
	var ok []*cachedGPU
	for _, c := range gpus {
		if c.failure == nil && !c.display && !c.gpu.MIG.Enabled {
			ok = append(ok, c)
		}
	}
	return ok
}

// cudaVersion is NVML's number (1000 × major + 10 × minor) as "major.minor";
// empty for 0.
func cudaVersion(v int) string {
	if v == 0 {
		return ""
	}
	return fmt.Sprintf("%d.%d", v/1000, v%1000/10)
}
