// SPDX-License-Identifier: Apache-2.0

// Package devices turns a machine and a mode into the ResourceSlices that the
// scheduler allocates from. It is pure: the same input gives the same bytes.
package devices

import (
	"cmp"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/dynamic-resource-allocation/resourceslice"

	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
	"github.com/gpushare/dra-driver-gpushare/pkg/mode"
)

// GiB is the unit that shared memory is counted in, in bytes.
const GiB int64 = 1 << 30

// coresStep is the granularity of compute shares in percent; ACK's
// aliyun.com/gpu-core.percentage has the same.
const coresStep = 5

// Options says how a machine's GPUs are served.
type Options struct {
	// Pool is the pool's name, see PoolName.
	Pool string
	// Mode is the mode of all GPUs.
	Mode mode.Mode
	// Slots is how many shares a GPU takes in the shared modes; at least 1.
	Slots int64
	// Room is what claims can share of the GPU with the UUID in the shared modes,
	// where that is less than all of it: somebody without a claim has the rest. It
	// closes no GPU; that is for GPUTaints.
	Room map[string]gpu.Amount
	// Limits is, where shares are spread, what claims may have together of the GPU with the
	// UUID for the moment, which is no more than its Room.
	Limits map[string]gpu.Amount
	// Isolation names what keeps the users of one GPU apart, IsolationLevel
	// what it takes to get around it; they become the attributes "isolation"
	// and "isolationLevel".
	Isolation, IsolationLevel string
	// GPULevels are the isolation levels of GPUs with another one, by UUID.
	GPULevels map[string]string
	// MemoryLimits says, by UUID, who counts the memory of GPUs on which the kernel limits it for
	// shares.
	MemoryLimits map[string]string
	// Order lists the indices of the GPUs in the order to publish them, see
	// package placement; nil is IndexOrder. GPUs that it does not name follow in the
	// order of their indices. In mode Topology it has no effect: the links decide.
	Order []int
	// Taints are put on every device, GPUTaints on those of the GPU with the
	// UUID.
	Taints    []resourceapi.DeviceTaint
	GPUTaints map[string][]resourceapi.DeviceTaint
	// Retained lists the GPUs of each linked set that was published before
	// and has to stay, closed to new claims, until it is not allocated any
	// more: only what is published counts its GPUs as taken.
	Retained [][]int
	// Allocated are the devices, by name, that are known to be allocated, prepared or not: see closeConflicts.
	Allocated map[string]bool
	// NVIDIA has devices also say what they are by the names of NVIDIA's DRA driver: see nvidiaNames.
	NVIDIA bool
	// MIG is for the instances of GPUs in MIG mode, which are offered in every mode.
	MIG MIGOptions
}

// IsFull reports whether no share in the mode, however small, fits into what is left of a GPU.
func IsFull(left gpu.Amount, m mode.Mode) bool {
	return left.Units < 1 || left.Shares < 1 || m.CountsCores() && left.Cores < coresStep
}

// Build returns the pool with one device per GPU that the mode Serves, in mode Topology with
// linked sets of GPUs after them, and in every mode with the instances of GPUs in MIG mode at the
// end. The scheduler takes the first device that fits, so the order is the placement.
func Build(m *gpu.Machine, o Options) resourceslice.DriverResources {
	if o.Mode == mode.Topology {
		return topologyPool(m, o)
	}
	devices := make([]resourceapi.Device, 0, len(m.GPUs))
	for _, g := range ordered(m, o.Order) {
		if Serves(o.Mode, g) {
			devices = append(devices, device(m, g, o))
		}
	}
	return withInstances(m, o, devices, nil)
}

// Serves reports whether the GPU can be offered in the mode. One without memory of its
// own is handed out as a whole only: its share of the host's cannot be told, let
// alone limited. So is one with less than the smallest share: the scheduler would give
// all of its capacity, which is nothing, to a claim that states no memory.
func Serves(m mode.Mode, g gpu.GPU) bool { return !m.Shared() || !g.HostMemory && g.MemoryUnits() > 0 }

// Empty returns the pool without devices: the driver is up and has nothing to
// hand out.
func Empty(poolName string) resourceslice.DriverResources {
	return pool(poolName, nil, nil)
}

func device(m *gpu.Machine, g gpu.GPU, o Options) resourceapi.Device {
	a := gpuAttributes(m, g)
	a.setString(v1alpha1.AttrMode, string(o.Mode))
	a.setString(v1alpha1.AttrIsolation, o.Isolation)
	a.setString(v1alpha1.AttrIsolationLevel, cmp.Or(o.GPULevels[g.UUID], o.IsolationLevel))
	a.setString(v1alpha1.AttrMemoryLimits, o.MemoryLimits[g.UUID])
	d := resourceapi.Device{
		Name:       DeviceName(g.Index, o.Mode),
		Attributes: a,
		Taints:     append(append([]resourceapi.DeviceTaint(nil), o.Taints...), o.GPUTaints[g.UUID]...),
	}
	if o.Mode.Shared() {
		shared := true
		d.AllowMultipleAllocations = &shared
		room, less := o.Room[g.UUID]
		if !less {
			room = gpu.Amount{Units: g.MemoryUnits(), Cores: gpu.WholeCores, Shares: o.Slots}
		}
		if limit, limited := o.Limits[g.UUID]; limited {
			a.setInt(v1alpha1.AttrShareableGiB, room.Units)
			a.setInt(v1alpha1.AttrMaxShares, room.Shares)
			room.Units, room.Shares = min(room.Units, limit.Units), min(room.Shares, limit.Shares)
		}
		d.Capacity = sharedCapacity(room, o.Mode)
	} else {
		d.Capacity = wholeCapacity(g)
	}
	if o.NVIDIA {
		nvidiaNames(&d, o.Mode, g.MemoryMiB)
	}
	return d
}

// wholeCapacity is what a claim for the whole GPU gets: its exact memory.
func wholeCapacity(g gpu.GPU) map[resourceapi.QualifiedName]resourceapi.DeviceCapacity {
	return map[resourceapi.QualifiedName]resourceapi.DeviceCapacity{
		v1alpha1.CapMemory: {Value: *resource.NewQuantity(g.MemoryMiB<<20, resource.BinarySI)},
		v1alpha1.CapCores:  {Value: *resource.NewQuantity(gpu.WholeCores, resource.DecimalSI)},
	}
}

// sharedCapacity is what claims share. A request that does not mention memory
// gets one unit and every request takes one slot, whatever it states: with more of
// them a little memory would close the GPU to all others. Only an admin request may
// state zero of both, so that it also finds room on a full GPU (the scheduler
// checks capacity for admin access too).
//
// Compute is granted in mode core-mem alone. In the other modes the most that
// can be asked for is nothing: so a claim for memory and compute finds no
// device there. In core-mem a claim has to state both, so nothing is given by
// default; that it does is checked when it is written and when it is prepared.
func sharedCapacity(room gpu.Amount, m mode.Mode) map[resourceapi.QualifiedName]resourceapi.DeviceCapacity {
	memoryDefault, cores, coresMost := GiB, int64(gpu.WholeCores), resource.NewQuantity(0, resource.DecimalSI)
	if m.CountsCores() {
		memoryDefault, cores, coresMost = 0, room.Cores-room.Cores%coresStep, nil
	}
	return map[resourceapi.QualifiedName]resourceapi.DeviceCapacity{
		v1alpha1.CapMemory: capacityOf(room.Units*GiB, resource.BinarySI,
			stepPolicy(memoryDefault, nil, GiB, resource.BinarySI)),
		v1alpha1.CapCores: capacityOf(cores, resource.DecimalSI, stepPolicy(0, coresMost, coresStep, resource.DecimalSI)),
		v1alpha1.CapSlots: capacityOf(room.Shares, resource.DecimalSI,
			stepPolicy(1, resource.NewQuantity(1, resource.DecimalSI), 1, resource.DecimalSI)),
	}
}

// capacityOf is a capacity of which requests get what the policy says. One of nothing
// has no policy: the API server takes none with a step that is more than there is.
func capacityOf(value int64, format resource.Format,
	policy *resourceapi.CapacityRequestPolicy) resourceapi.DeviceCapacity {
	c := resourceapi.DeviceCapacity{Value: *resource.NewQuantity(value, format)}
	if value > 0 {
		c.RequestPolicy = policy
	}
	return c
}

// stepPolicy lets a request ask for multiples of step up to most; nil is all
// that there is.
func stepPolicy(def int64, most *resource.Quantity, step int64,
	format resource.Format) *resourceapi.CapacityRequestPolicy {
	return &resourceapi.CapacityRequestPolicy{
		Default: resource.NewQuantity(def, format),
		ValidRange: &resourceapi.CapacityRequestPolicyRange{
			Min:  resource.NewQuantity(0, format),
			Max:  most,
			Step: resource.NewQuantity(step, format),
		},
	}
}
