// SPDX-License-Identifier: Apache-2.0

// Package claim turns the allocation of a ResourceClaim into grants: which
// GPU, how much of it, under which configuration. It is pure.
package claim

import (
	"errors"
	"fmt"
	"slices"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/dynamic-resource-allocation/resourceclaim"
	"k8s.io/utils/ptr"

	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/devices"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
	"github.com/gpushare/dra-driver-gpushare/pkg/mode"
)

// GPU is what a grant has to remember of its GPU, so that it can be undone
// and accounted when the GPU itself can no longer be read.
type GPU struct {
	// Index is that of the time when it was granted, by which its device is named: see Current.
	Index     int    `json:"index"`
	UUID      string `json:"uuid"`
	Model     string `json:"model"`
	MemoryMiB int64  `json:"memoryMiB"`
	// ReservedMiB is what nobody can have of MemoryMiB. Records of earlier versions lack it:
	// the limits of their claims are parts of all of the memory.
	ReservedMiB int64 `json:"reservedMiB,omitempty"`
	// MIG is what a MIG instance is of its GPU; nil for a GPU. UUID and MemoryMiB are the instance's
	// then, Index and Model the GPU's.
	MIG *Instance `json:"mig,omitempty"`
}

// Units is the GPU's memory in GiB units.
func (c GPU) Units() int64 { return gpu.GPU{MemoryMiB: c.MemoryMiB}.MemoryUnits() }

// Grant is one GPU, or a share of it, of an allocation result. The result for
// a linked set of GPUs is as many grants, one after the other and alike but
// for the GPU.
type Grant struct {
	// Request is the request's name, "request/subrequest" where the scheduler
	// chose among alternatives.
	Request string `json:"request"`
	// Pool and Device name what was allocated.
	Pool   string `json:"pool"`
	Device string `json:"device"`
	// ShareID tells the shares of one device apart; empty for a whole GPU.
	ShareID types.UID `json:"shareID,omitempty"`
	// Admin grants see the GPU and do not count against it.
	Admin bool      `json:"admin,omitempty"`
	Mode  mode.Mode `json:"mode"`
	GPU   GPU       `json:"card"`
	// Units is the granted memory in GiB units, CoresPercent the granted
	// compute; both are 0 for a whole GPU.
	Units        int64 `json:"units,omitempty"`
	CoresPercent int64 `json:"coresPercent,omitempty"`
	// Slots is how many of a GPU's shares this one counts as; 0 for a whole GPU.
	// Records of earlier versions lack it: their shares count as one.
	Slots int64 `json:"slots,omitempty"`
	// Isolation names the back end that enforces the amounts.
	Isolation string `json:"isolation,omitempty"`
	// KernelMemory is whether the kernel limits the memory, alone or beside that back end.
	KernelMemory bool `json:"kernelMemory,omitempty"`
	// TimeSlice is what the grant asks of its GPU; empty for the driver's default. See TimeSlices.
	TimeSlice v1alpha1.TimeSlice `json:"timeSlice,omitempty"`
	// Config is the request's configuration: defaults, then the class's, then
	// the claim's.
	Config v1alpha1.GpuConfig `json:"config"`
}

// Grants lists what the claim was allocated from the given pool of this
// driver, in the order of the allocation, of the GPUs and MIG instances that the machine has. Results
// of other drivers are not ours to judge and are left out. Errors name the request and what to change.
func Grants(c *resourceapi.ResourceClaim, pool string, m *gpu.Machine) ([]Grant, error) {
	if c.Status.Allocation == nil {
		return nil, errors.New("the claim is not allocated")
	}
	var grants []Grant
	for _, result := range c.Status.Allocation.Devices.Results {
		if result.Driver != v1alpha1.DriverName {
			continue
		}
		granted, err := grantsOf(c, result, pool, m)
		if err != nil {
			return nil, fmt.Errorf("request %q, device %q: %w", result.Request, result.Device, err)
		}
		grants = append(grants, granted...)
	}
	if len(grants) == 0 {
		return nil, fmt.Errorf("the claim's allocation holds no device of driver %s", v1alpha1.DriverName)
	}
	return grants, nil
}

func grantsOf(
	c *resourceapi.ResourceClaim, result resourceapi.DeviceRequestAllocationResult, pool string, machine *gpu.Machine,
) ([]Grant, error) {
	if result.Pool != pool {
		return nil, fmt.Errorf("it was allocated from pool %q, this node serves %q", result.Pool, pool)
	}
	indices, m, err := devices.ParseDeviceName(result.Device)
	if err != nil {
		return nil, err
	}
	admin := ptr.Deref(result.AdminAccess, false)
	if m == mode.Monitor {
		if !admin {
			return nil, errors.New("it shows a GPU to claims with adminAccess and gives nothing of it: ask for GPUs by a " +
				"class of their mode, or do not tolerate the taint " + v1alpha1.TaintMonitor)
		}
		m = mode.Exclusive // whoever sees a GPU sees all of it
	}
	config, err := configFor(c.Status.Allocation.Devices.Config, result)
	if err != nil {
		return nil, err
	}
	common := Grant{
		Request: result.Request,
		Pool:    result.Pool,
		Device:  result.Device,
		ShareID: ptr.Deref(result.ShareID, ""),
		Admin:   admin,
		Mode:    m,
		Config:  config,
	}
	if err := common.setAmounts(result.ConsumedCapacity); err != nil {
		return nil, err
	}
	grants := make([]Grant, 0, len(indices))
	for _, index := range indices {
		g := common
		if g.GPU, err = gpuOf(machine, result.Device, m, index); err != nil {
			return nil, fmt.Errorf("%w: see the node's Events, and delete the pod to have it placed again", err)
		}
		if g.Admin && g.GPU.Unmade() {
			return nil, fmt.Errorf("%s is made when a claim needs it: adminAccess sees only what is there", g.GPU)
		}
		grants = append(grants, g)
	}
	return grants, nil
}

// gpuOf is a device's GPU with the index, or the part of it that the device is.
func gpuOf(machine *gpu.Machine, device string, m mode.Mode, index int) (GPU, error) {
	if m == mode.MIG {
		return instanceOf(machine, device, index)
	}
	at := slices.IndexFunc(machine.GPUs, func(g gpu.GPU) bool { return g.Index == index })
	if at < 0 {
		return GPU{}, fmt.Errorf("GPU %d is no longer usable on this node", index)
	}
	g := machine.GPUs[at]
	return GPU{Index: g.Index, UUID: g.UUID, Model: g.Model, MemoryMiB: g.MemoryMiB, ReservedMiB: g.ReservedMiB}, nil
}

// BringsGPUs reports whether the claim was allocated devices of this driver.
func BringsGPUs(c *resourceapi.ResourceClaim) bool {
	if c.Status.Allocation == nil {
		return false
	}
	for _, r := range c.Status.Allocation.Devices.Results {
		if r.Driver == v1alpha1.DriverName {
			return true
		}
	}
	return false
}

// setAmounts takes the granted amounts from what the scheduler charged.
func (g *Grant) setAmounts(consumed map[resourceapi.QualifiedName]resource.Quantity) error {
	if !g.Mode.Shared() {
		return nil
	}
	if g.ShareID == "" {
		return errors.New("a shared device was allocated without a share ID: the scheduler's feature gate " +
			"DRAConsumableCapacity is off")
	}
	memory, cores := consumed[v1alpha1.CapMemory], consumed[v1alpha1.CapCores]
	g.Units = memory.Value() / devices.GiB
	g.CoresPercent = cores.Value()
	slots := consumed[v1alpha1.CapSlots]
	g.Slots = slots.Value()
	if g.Admin {
		return nil
	}
	if memory.Value() < devices.GiB || memory.Value()%devices.GiB != 0 {
		return fmt.Errorf("memory of %s was allocated: a share is a whole number of Gi, at least 1Gi", memory.String())
	}
	if g.Mode.CountsCores() && g.CoresPercent < 1 {
		return errors.New("no compute was asked for: a claim in mode core-mem states memory and cores, in percent of a GPU")
	}
	if g.Slots < 1 {
		return fmt.Errorf("%s slots were allocated: only a request with adminAccess may take none", slots.String())
	}
	return nil
}

// configFor resolves the configuration of a result. The allocation lists the
// class's parameters before the claim's, so the later one wins.
func configFor(
	configs []resourceapi.DeviceAllocationConfiguration, result resourceapi.DeviceRequestAllocationResult,
) (v1alpha1.GpuConfig, error) {
	resolved := v1alpha1.Default()
	for _, c := range resourceclaim.ConfigForResult(configs, result) {
		if c.Opaque == nil || c.Opaque.Driver != v1alpha1.DriverName {
			continue
		}
		parsed, err := v1alpha1.Decode(c.Opaque.Parameters.Raw)
		if err != nil {
			return v1alpha1.GpuConfig{}, fmt.Errorf("opaque config from the %s: %w", origin(c.Source), err)
		}
		resolved = resolved.Merge(parsed)
	}
	return resolved, nil
}

// classConfig is what the DeviceClass of a request configures, which an administrator wrote.
func classConfig(c *resourceapi.ResourceClaim, request string) (v1alpha1.GpuConfig, error) {
	ofClasses := slices.DeleteFunc(slices.Clone(c.Status.Allocation.Devices.Config),
		func(config resourceapi.DeviceAllocationConfiguration) bool {
			return config.Source != resourceapi.AllocationConfigSourceClass
		})
	return configFor(ofClasses, resourceapi.DeviceRequestAllocationResult{Request: request})
}

func origin(source resourceapi.AllocationConfigSource) string {
	if source == resourceapi.AllocationConfigSourceClass {
		return "DeviceClass"
	}
	return "claim"
}

// CountsAs is how many of the GPU's shares the grant counts as, 1 or more.
func (g Grant) CountsAs() int64 { return max(1, g.Slots) }

// CapMiB is the memory that a share may use, in MiB: the same part of what programs can
// have of the GPU's MiB as its units are of the GPU's units, rounded down
// (source: legacy memory formula; 3 of 15 units of 16130 MiB are 3226 MiB).
func (g Grant) CapMiB() int64 {
	units := g.GPU.Units()
	if units == 0 {
		return 0
	}
	return (g.GPU.MemoryMiB - g.GPU.ReservedMiB) * g.Units / units
}
