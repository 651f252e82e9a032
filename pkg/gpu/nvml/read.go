package nvml

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/NVIDIA/go-nvlib/pkg/nvlib/device"
	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"k8s.io/klog/v2"

	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
)

// Options are how to read. The zero value is valid.
type Options struct {
	// CallTimeout bounds each NVML call; 0 is DefaultCallTimeout.
	CallTimeout time.Duration
	// SysFS is the root of the sysfs that has the cards; empty is "/sys".
	SysFS string
}

// Read reads all cards. The library must be initialised (see Open) and stays
// so; Read neither initialises nor shuts it down. Reading again gives the same
// machine as long as nothing has changed.
//
// A card that cannot be used – it fails to tell a property that every card
// must have, is lost, hangs or is in MIG mode – is left out of GPUs and
// described in Faults; it does not affect the other cards. A property that a
// card may lack is left empty. Only what concerns all cards is an error: the
// driver version, the number of cards, a cancelled context.
//
// Two cards that contradict each other about the lanes between them are linked
// by the smaller number, and described in LinkFaults. A card that lacks lanes to
// NVSwitches which others of its model have is described in LaneFaults.
//
// A card that hangs costs one CallTimeout. The call that hung is left behind
// in a goroutine that ends when NVML returns, if ever.
//
// Cards are numbered in the order of their PCI addresses. A card whose address
// cannot be read takes the number at which NVML lists it, which on all known
// drivers is the same.
func Read(ctx context.Context, lib nvml.Interface, opts Options) (*gpu.Machine, error) {
	r := &reader{
		lib:     lib,
		devices: device.New(lib),
		timeout: orDefault(opts.CallTimeout),
		sysfs:   cmp.Or(opts.SysFS, "/sys"),
	}
	system := &calls{timeout: r.timeout}
	driver, err := ask(ctx, system, "reading the driver version", lib.SystemGetDriverVersion)
	if err != nil {
		return nil, unusable(err)
	}
	cuda, err := ask(ctx, system, "reading the CUDA version", lib.SystemGetCudaDriverVersion)
	if err != nil {
		if gone(err) {
			return nil, unusable(err)
		}
		klog.FromContext(ctx).Info("The driver does not tell its CUDA version, going on without", "err", err)
	}
	count, err := ask(ctx, system, "counting the cards", lib.DeviceGetCount)
	if err != nil {
		return nil, unusable(err)
	}

	cards := make([]*card, count)
	for i := range cards {
		cards[i] = r.readCard(ctx, i)
	}
	number(cards)
	machine := &gpu.Machine{DriverVersion: driver, CUDADriverVersion: cudaVersion(cuda)}
	machine.Links, machine.LinkFaults = readLinks(ctx, usable(cards))
	machine.LaneFaults = laneFaults(usable(cards))
	for _, c := range cards {
		if c.failure != nil {
			machine.Faults = append(machine.Faults, c.fault(ctx))
			continue
		}
		machine.GPUs = append(machine.GPUs, c.gpu)
	}
	if err := context.Cause(ctx); err != nil {
		return nil, fmt.Errorf("reading the cards: %w", err)
	}
	return machine, nil
}

func unusable(err error) error {
	return fmt.Errorf("NVML does not work: %w: see whether nvidia-smi works on the node", err)
}

// reader is what reading cards takes.
type reader struct {
	lib     nvml.Interface
	devices device.Interface
	timeout time.Duration
	sysfs   string
}

// has says whether the library has that function. A call to one that it does
// not have would end the process.
func (r *reader) has(function string) bool {
	return r.lib.Extensions().LookupSymbol(function) == nil
}

// number gives the cards, which come in NVML's order, their indices, and sorts
// them by it.
func number(cards []*card) {
	located := make([]*card, 0, len(cards))
	for _, c := range cards {
		if c.located {
			located = append(located, c)
		}
	}
	slices.SortStableFunc(located, func(a, b *card) int { return a.address.compare(b.address) })
	for i := range cards {
		if cards[i].located {
			cards[i], located = located[0], located[1:]
		}
		cards[i].gpu.Index = i
	}
}

func usable(cards []*card) []*card {
	var ok []*card
	for _, c := range cards {
		if c.failure == nil {
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
