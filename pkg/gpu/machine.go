// SPDX-License-Identifier: Apache-2.0

// Package gpu describes a node's NVIDIA GPUs as plain data.
//
// A Machine is read once, by pkg/gpu/nvml, from either the NVIDIA driver or a
// simulated machine (tests/standins/sim); everything after that – which devices are
// published, which GPU a claim got – is decided from this data alone.
package gpu

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// Machine is one node's GPUs and the links between them.
type Machine struct {
	// DriverVersion is the NVIDIA driver's version, e.g. "570.124.06"
	// (nvmlSystemGetDriverVersion).
	DriverVersion string
	// CUDADriverVersion is the highest CUDA version the driver supports as
	// "major.minor", e.g. "12.8" (nvmlSystemGetCudaDriverVersion_v2).
	CUDADriverVersion string
	// GPUs are the GPUs that can be handed out, ordered by Index.
	// Indices may have gaps: a GPU that is left out (see Faults) keeps its
	// index, so that an index always means the same slot.
	GPUs []GPU
	// Partitioned are the GPUs in MIG mode, ordered by Index. They have no Links.
	Partitioned []Partitioned
	// Links holds one entry per unordered pair of GPUs, with A < B, ordered
	// by (A, B). A pair without an entry has an unknown link.
	Links []Link
	// Faults are the GPUs that were found and left out, and why, ordered by
	// Index. A GPU is in GPUs, in Partitioned or in Faults, never in two of them.
	Faults []Fault
	// LinkFaults are the pairs of GPUs whose NVLink lanes the two do not
	// describe alike, ordered by (A, B). Their Link is what both agree on.
	LinkFaults []LinkFault
	// LaneFaults are the GPUs that have fewer NVLink lanes to NVSwitches than
	// others of their model, ordered by Index. Their Links are what is left.
	LaneFaults []LaneFault
	// FabricFaults are the GPUs that NVIDIA's fabric manager has not connected to the
	// machine's NVSwitches, ordered by Index.
	FabricFaults []FabricFault
}

// GPU is one GPU.
type GPU struct {
	// Index is the GPU's position in the order of PCI bus ids, counted over
	// all GPUs of the machine. It is the index the legacy environment
	// (ALIYUN_COM_GPU_MEM_IDX) and nvidia-smi use.
	Index int
	// UUID identifies the GPU across reboots, e.g. "GPU-3b1e…".
	UUID string
	// Minor is N of /dev/nvidiaN. It can differ from Index.
	Minor int
	// Model is ModelOf(ProductName).
	Model string
	// ProductName is NVML's device name, e.g. "Tesla V100-SXM2-16GB".
	ProductName string
	// Brand is NVML's brand, e.g. "Tesla"; empty if NVML does not say.
	Brand string
	// Architecture is NVML's architecture, e.g. "Volta"; empty if unknown.
	Architecture string
	// ComputeCapability is "major.minor", e.g. "7.0"; empty if unknown.
	ComputeCapability string
	// MemoryMiB is the GPU's total memory in MiB (nvmlDeviceGetMemoryInfo,
	// rounded down); that of the host if HostMemory.
	MemoryMiB int64
	// ReservedMiB is what the driver and the firmware keep of MemoryMiB for themselves
	// (nvmlDeviceGetMemoryInfo_v2, rounded up): no program can allocate it. It is 0 where
	// that is not told.
	ReservedMiB int64
	// HostMemory says that the GPU has no memory of its own and uses the host's,
	// as GB10 does. It is handed out as a whole only: what it uses beside others
	// cannot be told, let alone limited.
	HostMemory bool
	// SMCount is the number of streaming multiprocessors; 0 if unknown.
	SMCount int
	// PCIBusID is the address in sysfs' form: "0000:3b:00.0", lower case.
	PCIBusID string
	// PCIeRoot names the PCIe root complex ("pci0000:00"); empty if unknown.
	PCIeRoot string
	// NUMANode is the GPU's NUMA node; nil if unknown.
	NUMANode *int
	// MIG is the GPU's MIG mode.
	MIG MIGMode
}

// ModelOf returns a product name as the label aliyun.accelerator/nvidia_name writes
// it: with each space replaced by "-".
func ModelOf(productName string) string { return strings.ReplaceAll(productName, " ", "-") }

// MemoryUnits is the GPU's memory in the GiB units that sharing counts in:
// floor(MiB/1024), as the legacy device plugin counts
// (16130 MiB are 15 units).
func (g GPU) MemoryUnits() int64 { return g.MemoryMiB / 1024 }

// LinkKind says what connects two GPUs.
type LinkKind string

// Kinds of links, from fastest to slowest; all but LinkNVLink are the
// common-ancestor levels of nvmlDeviceGetTopologyCommonAncestor, under the
// names that "nvidia-smi topo -m" prints.
const (
	LinkNVLink  LinkKind = "NV"   // NVLink lanes
	LinkSameGPU LinkKind = "X"    // two GPUs on one board
	LinkPIX     LinkKind = "PIX"  // at most one PCIe switch
	LinkPXB     LinkKind = "PXB"  // several PCIe switches
	LinkPHB     LinkKind = "PHB"  // the PCIe host bridge
	LinkNode    LinkKind = "NODE" // between host bridges of one NUMA node
	LinkSystem  LinkKind = "SYS"  // between NUMA nodes
)

// Link is the best connection between the GPUs with indices A and B, A < B.
type Link struct {
	A, B int
	Kind LinkKind
	// Lanes and Generation describe NVLink: number of lanes and NVLink
	// version (1–5). Both are 0 for other kinds.
	Lanes, Generation int
	// Switched says that NVLink lanes lead through NVSwitches, which join all
	// GPUs that have such lanes.
	Switched bool
	// GBps is the bandwidth in GB/s, one direction: for NVLink, lanes × the
	// generation's rate per lane; for the PCIe levels a nominal figure that
	// only serves to rank them.
	GBps int
}

// LinkFault is a contradiction between what the GPUs with indices A and B,
// A < B, say about the NVLink lanes between them.
type LinkFault struct {
	A, B int
	// LanesOfA and LanesOfB are how many lanes to the other each of them has.
	LanesOfA, LanesOfB int
}

func (f LinkFault) String() string {
	return fmt.Sprintf("GPU %d has %d NVLink lanes to GPU %d, which has %d back", f.A, f.LanesOfA, f.B, f.LanesOfB)
}

// LaneFault says that the GPU with this index has fewer NVLink lanes to NVSwitches
// than the GPU of the same model that has most of them.
type LaneFault struct {
	Index       int
	Lanes, Most int
}

func (f LaneFault) String() string {
	return fmt.Sprintf("GPU %d has %d NVLink lanes to NVSwitches, others of its model have %d", f.Index, f.Lanes, f.Most)
}

// FabricFault says that NVIDIA's fabric manager has not connected the GPU with this index.
type FabricFault struct{ Index int }

func (f FabricFault) String() string { return fmt.Sprintf("GPU %d", f.Index) }

// FaultReason classifies why a GPU was left out. Values are stable and are
// used as Event reasons.
type FaultReason string

// Reasons for a GPU to be left out.
const (
	FaultUnreadable FaultReason = "Unreadable" // NVML failed on a property without which the GPU cannot be used
	FaultLost       FaultReason = "Lost"       // the GPU has fallen off the bus (NVML: GPU_IS_LOST)
)

// Fault is a GPU that was found and left out.
type Fault struct {
	Index  int
	UUID   string // empty if it could not be read
	Reason FaultReason
	// Message says what was tried and what came back, for logs and Events.
	Message string
}

func (f Fault) String() string {
	return fmt.Sprintf("GPU %d (%s): %s: %s", f.Index, f.UUID, f.Reason, f.Message)
}

// LeaveOut moves GPUs from GPUs and Partitioned to Faults, and drops their links. Copies of the
// machine keep what they have.
func (m *Machine) LeaveOut(faults ...Fault) {
	out := map[int]bool{}
	for _, f := range faults {
		out[f.Index] = true
	}
	m.Faults = slices.Concat(m.Faults, faults)
	slices.SortStableFunc(m.Faults, func(a, b Fault) int { return cmp.Compare(a.Index, b.Index) })
	m.GPUs = without(m.GPUs, func(g GPU) bool { return out[g.Index] })
	m.Partitioned = without(m.Partitioned, func(p Partitioned) bool { return out[p.Index] })
	m.Links = without(m.Links, func(l Link) bool { return out[l.A] || out[l.B] })
	m.LinkFaults = without(m.LinkFaults, func(f LinkFault) bool { return out[f.A] || out[f.B] })
	m.LaneFaults = without(m.LaneFaults, func(f LaneFault) bool { return out[f.Index] })
	m.FabricFaults = without(m.FabricFaults, func(f FabricFault) bool { return out[f.Index] })
}

// without is what is left of all, in an array of its own; nil if nothing is.
func without[T any](all []T, out func(T) bool) []T {
	var left []T
	for _, v := range all {
		if !out(v) {
			left = append(left, v)
		}
	}
	return left
}
