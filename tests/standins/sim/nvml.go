// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock/gpus"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock/server"
	"github.com/google/uuid"
)

// NVML returns the machine's GPUs as go-nvml's mock presents them. Its Init
// and Shutdown always succeed. Calls that neither the mock nor this package
// serves panic, as go-nvml's mock defines it.
func (s *Spec) NVML() nvml.Interface {
	configs := make([]gpus.Config, 0, len(s.GPUs))
	for _, c := range s.GPUs {
		configs = append(configs, s.Models[c.Model].config())
	}
	lib := server.NewServerWithGPUs(s.Driver.Version, "12."+s.Driver.Version, cudaVersion(s.Driver.CUDA), configs...)
	handles := make([]*server.Device, len(s.GPUs))
	for i := range s.GPUs {
		// The mock's constructor makes exactly this type; DeviceGetHandleByUUID
		// relies on it too.
		handles[i] = lib.Devices[i].(*server.Device)
		s.configure(handles[i], i)
	}
	lanes := s.lanes()
	for i, d := range handles {
		setLanes(d, lanes[i], handles, uint32(architectures[s.Models[s.GPUs[i].Model].Architecture].nvlink))
		s.setTopology(d, i)
		setFaults(d, s.GPUs[i].Fault)
	}
	s.setHandleFaults(lib)
	return lib
}

func (m Model) config() gpus.Config {
	major, minor := versionPair(m.ComputeCapability)
	return gpus.Config{
		Name:         m.ProductName,
		Architecture: architectures[m.Architecture].code,
		Brand:        brands[m.Brand],
		MemoryMB:     uint64(m.MemoryMiB),
		CudaMajor:    major,
		CudaMinor:    minor,
		PciDeviceId:  m.PCIDeviceID,
	}
}

// configure gives the GPU its place and what the mock leaves unanswered.
func (s *Spec) configure(d *server.Device, i int) {
	g, model := s.GPUs[i], s.Models[s.GPUs[i].Model]
	d.UUID, d.PciBusID, d.Minor = s.uuid(i), g.BusID, s.minor(i)
	pci := pciInfo(g.BusID, model.PCIDeviceID)
	d.GetPciInfoFunc = func() (nvml.PciInfo, nvml.Return) { return pci, nvml.SUCCESS }
	d.GetMemoryInfo_v2Func = func() (nvml.Memory_v2, nvml.Return) {
		return nvml.Memory_v2{Total: uint64(model.MemoryMiB) << 20, Reserved: uint64(model.ReservedMiB) << 20}, nvml.SUCCESS
	}
	d.GetNumGpuCoresFunc = func() (int, nvml.Return) { return model.CUDACores, nvml.SUCCESS }
	d.GetGpuFabricInfoFunc = func() (nvml.GpuFabricInfo, nvml.Return) {
		return nvml.GpuFabricInfo{}, nvml.ERROR_NOT_SUPPORTED
	}
	d.IsMigDeviceHandleFunc = func() (bool, nvml.Return) { return false, nvml.SUCCESS }
	d.GetMigModeFunc = func() (int, int, nvml.Return) {
		if !model.MIG {
			return 0, 0, nvml.ERROR_NOT_SUPPORTED
		}
		return number(g.MIG.Enabled), number(g.MIG.pending()), nvml.SUCCESS
	}
	if g.MIG.Enabled {
		d.GetNumGpuCoresFunc = func() (int, nvml.Return) { return 0, nvml.ERROR_NOT_SUPPORTED }
		// The mock is not cut: go-nvml has no way to tell it what V2 and V3 of this answer.
		d.GetGpuInstanceProfileInfoFunc = func(int) (nvml.GpuInstanceProfileInfo, nvml.Return) {
			return nvml.GpuInstanceProfileInfo{}, nvml.ERROR_INVALID_ARGUMENT
		}
	}
}

// uuid derives the GPU's UUID so that it is the same after a restart and
// different on every node.
func (s *Spec) uuid(i int) string {
	if u := s.GPUs[i].UUID; u != "" {
		return u
	}
	seed := fmt.Sprintf("%s/%s/%d", s.Name, s.Node, i)
	return "GPU-" + uuid.NewSHA1(uuid.NameSpaceOID, []byte(seed)).String()
}

func (s *Spec) minor(i int) int {
	if m := s.GPUs[i].Minor; m != nil {
		return *m
	}
	return i
}

// pciInfo is NVML's form of a PCI address that has passed validation.
func pciInfo(busID string, deviceID uint32) nvml.PciInfo {
	var domain, bus, device uint32
	// Only an unvalidated address could fail here; it reads as 0000:00:00.0.
	_, _ = fmt.Sscanf(busID, "%04x:%02x:%02x.0", &domain, &bus, &device)
	info := nvml.PciInfo{Domain: domain, Bus: bus, Device: device, PciDeviceId: deviceID}
	for i, b := range []byte("0000" + strings.ToUpper(busID)) {
		info.BusId[i] = int8(b)
	}
	for i, b := range []byte(strings.ToUpper(busID)) {
		info.BusIdLegacy[i] = int8(b)
	}
	return info
}

// cudaVersion is NVML's form of a CUDA version: 1000 × major + 10 × minor.
func cudaVersion(version string) int {
	major, minor := versionPair(version)
	return 1000*major + 10*minor
}

// versionPair splits "major.minor" that has passed validation.
func versionPair(version string) (major, minor int) {
	a, b, _ := strings.Cut(version, ".")
	major, _ = strconv.Atoi(a)
	minor, _ = strconv.Atoi(b)
	return major, minor
}
