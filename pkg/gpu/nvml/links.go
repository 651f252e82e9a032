// SPDX-License-Identifier: Apache-2.0

package nvml

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"k8s.io/klog/v2"

	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
)

// lane is one active NVLink lane of a GPU.
type lane struct {
	toSwitch bool
	// peer is the GPU at the other end; meaningful unless toSwitch.
	peer pciAddress
	// version is NVML's code for the NVLink version; 0 if unknown.
	version uint32
}

// readLanes reads where the GPU's NVLink lanes lead. It fails only if the
// GPU answers no more; a lane that cannot be read does not count.
func (r *Reader) readLanes(ctx context.Context, c *cachedGPU) error {
	if !r.has("nvmlDeviceGetNvLinkState") || !r.has("nvmlDeviceGetNvLinkRemotePciInfo") &&
		!r.has("nvmlDeviceGetNvLinkRemotePciInfo_v2") {
		return nil
	}
	for i := range nvml.NVLINK_MAX_LINKS {
		state, err := ask(ctx, c.Calls, fmt.Sprintf("reading NVLink %d", i), func() (nvml.EnableState, nvml.Return) {
			return c.handle.GetNvLinkState(i)
		})
		switch {
		case errors.Is(err, nvml.ERROR_INVALID_ARGUMENT):
			return nil // there are no more
		case gone(err):
			return err
		case err != nil || state != nvml.FEATURE_ENABLED:
			continue
		}
		l, ok, err := r.readLane(ctx, c, i)
		if err != nil {
			return err
		}
		if ok {
			c.lanes = append(c.lanes, l)
		}
	}
	return nil
}

// readLane fails only if the GPU answers no more.
func (r *Reader) readLane(ctx context.Context, c *cachedGPU, i int) (l lane, ok bool, err error) {
	l.version, err = optional(ctx, r, c.Calls, fmt.Sprintf("reading the version of NVLink %d", i),
		"nvmlDeviceGetNvLinkVersion", func() (uint32, nvml.Return) {
			return c.handle.GetNvLinkVersion(i)
		})
	if gone(err) {
		return lane{}, false, err
	}
	remote, err := optional(ctx, r, c.Calls, fmt.Sprintf("reading the peer of NVLink %d", i),
		"nvmlDeviceGetNvLinkRemoteDeviceType", func() (*nvml.IntNvLinkDeviceType, nvml.Return) {
			t, ret := c.handle.GetNvLinkRemoteDeviceType(i)
			return &t, ret
		})
	if gone(err) {
		return lane{}, false, err
	}
	switch {
	case err != nil || remote == nil: // unknown
	case *remote == nvml.NVLINK_DEVICE_TYPE_SWITCH:
		l.toSwitch = true
		return l, true, nil
	case *remote == nvml.NVLINK_DEVICE_TYPE_IBMNPU:
		return lane{}, false, nil // to the CPU
	}
	// Also where the type is unknown: the address tells whether it is a GPU.
	pci, err := ask(ctx, c.Calls, fmt.Sprintf("reading the peer address of NVLink %d", i),
		func() (nvml.PciInfo, nvml.Return) {
			return c.handle.GetNvLinkRemotePciInfo(i)
		})
	if gone(err) {
		return lane{}, false, err
	}
	l.peer = addressOf(pci)
	return l, err == nil, nil
}

// readLinks finds the best link of every pair of GPUs, which come in the
// order of their indices, and the pairs that contradict each other.
func (r *Reader) readLinks(ctx context.Context, gpus []*cachedGPU) ([]gpu.Link, []gpu.LinkFault) {
	// Side by side: of GPUs that hang, those before them wait for each.
	linksOf := make([][]gpu.Link, len(gpus))
	var wg sync.WaitGroup
	for i, a := range gpus {
		wg.Go(func() {
			for _, b := range gpus[i+1:] {
				if l, ok := nvlink(a, b); ok {
					linksOf[i] = append(linksOf[i], l)
				} else if l, ok := r.pcieLink(ctx, a, b); ok {
					linksOf[i] = append(linksOf[i], l)
				}
			}
		})
	}
	var faults []gpu.LinkFault
	for i, a := range gpus {
		for _, b := range gpus[i+1:] {
			if there, back := a.lanesTo(b), b.lanesTo(a); there != back {
				faults = append(faults, gpu.LinkFault{A: a.gpu.Index, B: b.gpu.Index, LanesOfA: there, LanesOfB: back})
			}
		}
	}
	wg.Wait()
	return slices.Concat(linksOf...), faults
}

// laneFaults finds the GPUs with fewer lanes to NVSwitches than others of their
// model, in the order of the GPUs.
func laneFaults(gpus []*cachedGPU) []gpu.LaneFault {
	most := map[string]int{}
	for _, c := range gpus {
		most[c.gpu.Model] = max(most[c.gpu.Model], c.lanesToSwitch())
	}
	var faults []gpu.LaneFault
	for _, c := range gpus {
		if lanes := c.lanesToSwitch(); lanes < most[c.gpu.Model] {
			faults = append(faults, gpu.LaneFault{Index: c.gpu.Index, Lanes: lanes, Most: most[c.gpu.Model]})
		}
	}
	return faults
}

// nvlink is the NVLink connection between two GPUs, if they have one. Where
// the two disagree about the lanes between them, fewer count.
func nvlink(a, b *cachedGPU) (gpu.Link, bool) {
	direct, switched := min(a.lanesTo(b), b.lanesTo(a)), min(a.lanesToSwitch(), b.lanesToSwitch())
	if direct+switched == 0 {
		return gpu.Link{}, false
	}
	generation := min(a.nvlinkGeneration(), b.nvlinkGeneration())
	return gpu.NVLink(a.gpu, b.gpu, generation, direct, switched), true
}

func (c *cachedGPU) lanesTo(peer *cachedGPU) int {
	n := 0
	for _, l := range c.lanes {
		if !l.toSwitch && l.peer == peer.address {
			n++
		}
	}
	return n
}

// lanesToSwitch counts the lanes to NVSwitches. NVSwitches connect all GPUs
// of a machine with each other, at the full width of each GPU.
func (c *cachedGPU) lanesToSwitch() int {
	n := 0
	for _, l := range c.lanes {
		if l.toSwitch {
			n++
		}
	}
	return n
}

// nvlinkGeneration is the NVLink generation that the GPU speaks, 0 if unknown.
// The architecture decides where it is known: drivers from before NVML defined
// its version codes report hardware codes, of which some mean another
// generation.
func (c *cachedGPU) nvlinkGeneration() int {
	if known := gpu.NVLinkGeneration(c.gpu.Architecture); known > 0 {
		return known
	}
	generation := 0
	for _, l := range c.lanes {
		generation = max(generation, generationOf(nvml.NvlinkVersion(l.version)))
	}
	return generation
}

// generationOf maps nvmlNvlinkVersion_t (nvml.h) to the generation.
func generationOf(version nvml.NvlinkVersion) int {
	switch version {
	case nvml.NVLINK_VERSION_1_0:
		return 1
	case nvml.NVLINK_VERSION_2_0, nvml.NVLINK_VERSION_2_2:
		return 2
	case nvml.NVLINK_VERSION_3_0, nvml.NVLINK_VERSION_3_1:
		return 3
	case nvml.NVLINK_VERSION_4_0:
		return 4
	case nvml.NVLINK_VERSION_5_0:
		return 5
	case nvml.NVLINK_VERSION_6_0:
		return 6
	}
	return 0
}

// pcieLink is the PCIe connection between two GPUs, if NVML tells.
func (r *Reader) pcieLink(ctx context.Context, a, b *cachedGPU) (gpu.Link, bool) {
	if !r.has("nvmlDeviceGetTopologyCommonAncestor") {
		return gpu.Link{}, false
	}
	level, err := ask(ctx, a.peers, "reading the PCIe distance to "+b.gpu.PCIBusID,
		func() (nvml.GpuTopologyLevel, nvml.Return) {
			return a.handle.GetTopologyCommonAncestor(b.handle)
		})
	if err != nil {
		// Which of the two is to blame for anything but NOT_SUPPORTED cannot be
		// told, and both could be read, so neither is left out for it.
		if !unsupported(err) {
			klog.FromContext(ctx).V(4).Info("The link between two GPUs is unknown", "a", a.gpu.PCIBusID, "b", b.gpu.PCIBusID,
				"err", err)
		}
		return gpu.Link{}, false
	}
	kind, known := pcieLevels[level]
	return gpu.PCIeLink(a.gpu, b.gpu, kind), known
}

// pcieLevels are NVML's common-ancestor levels.
var pcieLevels = map[nvml.GpuTopologyLevel]gpu.LinkKind{
	nvml.TOPOLOGY_INTERNAL: gpu.LinkSameGPU, nvml.TOPOLOGY_SINGLE: gpu.LinkPIX, nvml.TOPOLOGY_MULTIPLE: gpu.LinkPXB,
	nvml.TOPOLOGY_HOSTBRIDGE: gpu.LinkPHB, nvml.TOPOLOGY_NODE: gpu.LinkNode, nvml.TOPOLOGY_SYSTEM: gpu.LinkSystem,
}
