// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock/server"
)

// of returns what a property answers instead of its value.
func (f Fault) of(p Property) (ret nvml.Return, faulty bool) {
	if name, ok := f.Errors[p]; ok {
		return returns[name], true
	}
	switch {
	case p == propertyHandle:
		// It does not depend on the GPU: NVML hands it out by index.
		return nvml.SUCCESS, false
	case f.Hangs:
		return returnHang, true
	case f.Lost:
		return nvml.ERROR_GPU_IS_LOST, true
	}
	return nvml.SUCCESS, false
}

// fail1, fail2 and failOn stand in for a function of the mock, by its shape,
// where the property is faulty.
func fail1[A any](f Fault, p Property, answer func() (A, nvml.Return)) func() (A, nvml.Return) {
	ret, faulty := f.of(p)
	if !faulty {
		return answer
	}
	return func() (a A, _ nvml.Return) { return a, settle(ret) }
}

func fail2[A, B any](f Fault, p Property, answer func() (A, B, nvml.Return)) func() (A, B, nvml.Return) {
	ret, faulty := f.of(p)
	if !faulty {
		return answer
	}
	return func() (a A, b B, _ nvml.Return) { return a, b, settle(ret) }
}

func failOn[A, B any](f Fault, p Property, answer func(A) (B, nvml.Return)) func(A) (B, nvml.Return) {
	ret, faulty := f.of(p)
	if !faulty {
		return answer
	}
	return func(A) (b B, _ nvml.Return) { return b, settle(ret) }
}

// Hangs is how long a call that hangs takes: longer than any test. It ends, so that a synctest bubble can outlast it.
const Hangs = 100 * 365 * 24 * time.Hour

// settle returns ret, at once or after Hangs.
func settle(ret nvml.Return) nvml.Return {
	if ret == returnHang {
		time.Sleep(Hangs)
	}
	return ret
}

// setFaults replaces the answers of the GPU's faulty properties.
func setFaults(d *server.Device, f Fault) {
	d.GetUUIDFunc = fail1(f, propertyUUID, d.GetUUIDFunc)
	d.GetMinorNumberFunc = fail1(f, propertyMinor, d.GetMinorNumberFunc)
	d.GetNameFunc = fail1(f, propertyName, d.GetNameFunc)
	d.GetMemoryInfoFunc = fail1(f, propertyMemory, d.GetMemoryInfoFunc)
	d.GetMemoryInfo_v2Func = fail1(f, propertyReserved, d.GetMemoryInfo_v2Func)
	d.GetPciInfoFunc = fail1(f, propertyPCI, d.GetPciInfoFunc)
	d.GetMigModeFunc = fail2(f, propertyMIG, d.GetMigModeFunc)
	d.GetBrandFunc = fail1(f, propertyBrand, d.GetBrandFunc)
	d.GetArchitectureFunc = fail1(f, propertyArchitecture, d.GetArchitectureFunc)
	d.GetCudaComputeCapabilityFunc = fail2(f, propertyComputeCapability, d.GetCudaComputeCapabilityFunc)
	d.GetNumGpuCoresFunc = fail1(f, propertyCores, d.GetNumGpuCoresFunc)
	d.GetNvLinkStateFunc = failOn(f, propertyNVLink, d.GetNvLinkStateFunc)
	d.GetTopologyCommonAncestorFunc = failOn(f, propertyTopology, d.GetTopologyCommonAncestorFunc)
}

// setHandleFaults makes the library refuse the handles of GPUs whose handle
// is faulty. To find a GPU by its UUID the driver asks all of them: one that is
// lost or Hangs keeps all others from being found.
func (s *Spec) setHandleFaults(lib *server.Server) {
	byIndex, byUUID := lib.DeviceGetHandleByIndexFunc, lib.DeviceGetHandleByUUIDFunc
	lib.DeviceGetHandleByIndexFunc = func(i int) (nvml.Device, nvml.Return) {
		if i >= 0 && i < len(s.GPUs) {
			if ret, faulty := s.GPUs[i].Fault.of(propertyHandle); faulty {
				return nil, settle(ret)
			}
		}
		return byIndex(i)
	}
	lib.DeviceGetHandleByUUIDFunc = func(uuid string) (nvml.Device, nvml.Return) {
		for _, c := range s.GPUs {
			ret, faulty := c.Fault.of(propertyUUID)
			if faulty && (ret == nvml.ERROR_GPU_IS_LOST || ret == returnHang) {
				return nil, settle(ret)
			}
		}
		return byUUID(uuid)
	}
}
