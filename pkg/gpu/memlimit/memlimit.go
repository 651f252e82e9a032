// SPDX-License-Identifier: Apache-2.0

// Package memlimit sets and reads, through NVML, how much of a GPU's memory the processes
// of a control group may have. NVIDIA's kernel driver counts and refuses, from release 615
// on, whatever a program's environment or libraries say.
//
// It imports go-nvml and nothing else of weight: a hook, which containers wait for, is
// linked with it. Sections named in its comments are those of limits.md, the project's
// facts about these limits. No driver that has them was at hand: what is said of the
// driver is what NVIDIA's manual, or somebody's measurement, says.
package memlimit

import (
	"errors"
	"fmt"
	"math"
	"strings"
	"sync"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// NoLimit is the hard limit that stands for none (§2: NVML_DEVICE_MEMORY_LIMIT_MAX).
const NoLimit uint64 = math.MaxUint64

// Limit is what NVML says of a control group on a GPU, in bytes.
type Limit struct {
	// Soft is what the control group is promised, Hard what it cannot pass.
	Soft, Hard uint64
	// Used is what it is charged with now.
	Used uint64
}

// ErrUnsupported is that NVIDIA's driver has no such limits at all.
var ErrUnsupported = errors.New("the NVIDIA driver has no memory limits by control group, which came with release 615")

// ErrUnset is that nothing limits the control group, or that the driver cannot limit it:
// the driver says the same of both where it counts by its own table (§2).
var ErrUnset = errors.New("no memory limit is set on the control group")

// ErrUncounted is that nobody counts the GPU's memory by control group, and so nobody limits it: it lasts as long as
// the kernel and its driver run.
var ErrUncounted = errors.New("neither the kernel (dmem) nor the NVIDIA driver (misc) counts memory there")

// symbols are the functions that release 615 added (§2). go-nvml ends the process where one
// is called that the library lacks.
var symbols = []string{"nvmlDeviceSetMemoryLimits_v1", "nvmlDeviceGetMemoryLimits_v1"}

// Library is NVIDIA's NVML library.
type Library struct {
	lib  nvml.Interface
	path string

	mu sync.Mutex
	// asking are the GPUs, by their places in NVML's order, that are being asked which they are, and who waits for that.
	asking map[int][]chan<- answer
}

// Open loads and initialises the library at path. It is ErrUnsupported where the driver is
// older. The caller closes what it has opened. Open may hang where the driver does.
func Open(path string) (*Library, error) {
	return opened(nvml.New(nvml.WithLibraryPath(path)), path)
}

func opened(lib nvml.Interface, path string) (*Library, error) {
	if ret := lib.Init(); ret != nvml.SUCCESS {
		return nil, fmt.Errorf("initialise NVML from %s: %w: see whether nvidia-smi works on the node", path, ret)
	}
	l := &Library{lib: lib, path: path, asking: map[int][]chan<- answer{}}
	for _, name := range symbols {
		if err := lib.Extensions().LookupSymbol(name); err != nil {
			version, _ := lib.SystemGetDriverVersion()
			return nil, errors.Join(fmt.Errorf("%w: that of the node is %s", ErrUnsupported, version), l.Close())
		}
	}
	return l, nil
}

// Close shuts the library down. Others that have initialised it are not touched. It stays as it is while a GPU does
// not answer: that call would lose what it works on, or Close wait for it.
func (l *Library) Close() error {
	l.mu.Lock()
	hung := len(l.asking) > 0
	l.mu.Unlock()
	if hung {
		return nil
	}
	if ret := l.lib.Shutdown(); ret != nvml.SUCCESS {
		return fmt.Errorf("shut NVML down: %w", ret)
	}
	return nil
}

// GPU is one GPU of a Library, for as long as that is open. Its methods may be called
// concurrently.
type GPU struct {
	handle nvml.Device
	uuid   string
}

// GPU finds a GPU by its UUID. likely is its place in NVML's order, as far as is known. One in MIG mode is an error:
// there the driver refuses limits (§7).
func (l *Library) GPU(uuid string, likely int) (GPU, error) {
	handle, err := l.find(uuid, likely)
	if err != nil {
		return GPU{}, fmt.Errorf("find GPU %s: %w", uuid, err)
	}
	if l.lib.Extensions().LookupSymbol("nvmlDeviceGetMigMode") == nil {
		switch mode, _, ret := handle.GetMigMode(); {
		case ret == nvml.SUCCESS && mode == nvml.DEVICE_MIG_ENABLE:
			return GPU{}, fmt.Errorf("GPU %s is in MIG mode, in which the driver limits no control group", uuid)
		case ret != nvml.SUCCESS && ret != nvml.ERROR_NOT_SUPPORTED:
			return GPU{}, fmt.Errorf("read the MIG mode of GPU %s: %w", uuid, ret)
		}
	}
	return GPU{handle, uuid}, nil
}

// PCIAddress is the GPU's PCI address as sysfs writes it, such as 0000:02:00.0.
func (g GPU) PCIAddress() (string, error) {
	info, ret := g.handle.GetPciInfo()
	if ret != nvml.SUCCESS {
		return "", fmt.Errorf("read the PCI address of GPU %s: %w", g.uuid, ret)
	}
	return fmt.Sprintf("%04x:%02x:%02x.0", info.Domain, info.Bus, info.Device), nil
}

// Set has the driver refuse the processes of the control group in this directory what goes
// beyond hard bytes. It promises them nothing: with a soft limit of 0 nothing is left in
// the sums of the groups above when this one goes (§2). That Set succeeds is not that it
// applies: Get tells. It is ErrUncounted where nobody counts.
func (g GPU) Set(dir string, hard uint64) error {
	switch ret := g.handle.SetMemoryLimits_v1(dir, 0, hard); ret {
	case nvml.SUCCESS:
		return nil
	case nvml.ERROR_NOT_SUPPORTED:
		return fmt.Errorf("limit control group %s on GPU %s: %w (%w)", dir, g.uuid, ErrUncounted, ret)
	default:
		return fmt.Errorf("limit control group %s on GPU %s: %w%s", dir, g.uuid, ret, hint(ret))
	}
}

// Get is the limit on the control group in this directory. It is ErrUnset where the driver
// has none to tell.
func (g GPU) Get(dir string) (Limit, error) {
	limit, ret := g.handle.GetMemoryLimits_v1(dir)
	switch ret {
	case nvml.SUCCESS:
		return Limit{Soft: limit.SoftLimit, Hard: limit.HardLimit, Used: limit.CurrentUsed}, nil
	case nvml.ERROR_NOT_SUPPORTED, nvml.ERROR_NOT_FOUND:
		return Limit{}, fmt.Errorf("read the limit of control group %s on GPU %s: %w (%w)", dir, g.uuid, ErrUnset, ret)
	default:
		return Limit{}, fmt.Errorf("read the limit of control group %s on GPU %s: %w%s", dir, g.uuid, ret, hint(ret))
	}
}

// hint says what to do about an error of Set or Get (§2 has their meanings).
func hint(ret nvml.Return) string {
	switch ret {
	case nvml.ERROR_NO_PERMISSION:
		return ": it takes CAP_SYS_ADMIN in the node's first user namespace, and /dev/nvidiactl"
	case nvml.ERROR_INVALID_ARGUMENT:
		return ": the limit is more than the GPU's memory"
	case nvml.ERROR_OPERATING_SYSTEM:
		return ": the kernel has no such control group"
	default:
		return ""
	}
}

// CountedByDMem reports whether a file dmem.capacity, which the kernel has in the root of its control
// groups, lists the GPU at that PCI address: then the kernel's controller dmem counts the
// GPU's memory, and limits of a group hold for all groups below it. Else the NVIDIA driver
// counts by a table of its own, called misc, in which only the nearest group with a limit
// counts (§1, §6).
func CountedByDMem(dmemCapacity []byte, pciAddress string) bool {
	for line := range strings.Lines(string(dmemCapacity)) {
		// A line is "nvidia/00000000:02:00.0/vidmem BYTES": NVIDIA writes the domain with eight digits.
		region, _, _ := strings.Cut(strings.TrimSpace(line), " ")
		if vendor, rest, _ := strings.Cut(region, "/"); vendor != "nvidia" {
			continue
		} else if at, _, _ := strings.Cut(rest, "/"); sameAddress(at, pciAddress) {
			return true
		}
	}
	return false
}

// sameAddress compares PCI addresses whose domains have any number of digits.
func sameAddress(a, b string) bool {
	return a != "" && strings.EqualFold(strings.TrimLeft(a, "0"), strings.TrimLeft(b, "0"))
}
