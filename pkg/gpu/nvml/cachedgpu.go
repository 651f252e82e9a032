// SPDX-License-Identifier: Apache-2.0

package nvml

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/NVIDIA/go-nvlib/pkg/nvlib/device"
	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"k8s.io/dynamic-resource-allocation/deviceattribute"
	"k8s.io/klog/v2"

	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu/bounded"
)

// GPU is one GPU, as it was read last.
type cachedGPU struct {
	// Calls are those on the GPU alone, peers those that concern another GPU
	// too: where these hang, the other one may be to blame.
	*bounded.Calls
	peers *bounded.Calls

	gpu     gpu.GPU
	handle  nvml.Device
	address pciAddress
	located bool // address is known
	lanes   []lane
	// instances are those of a GPU in MIG mode, handedOut those that can be handed out, by UUID, as read last.
	instances []gpu.Instance
	handedOut map[string]gpu.InstanceID
	// devices are the MIG devices of these, by UUID. A handle may lead to another one once its own is gone.
	devices map[string]nvml.Device
	// told is what the GPU told of itself, in this reading or an earlier one.
	told told
	// failure is why the GPU cannot be used; nil if it can.
	failure error
	// display says that the GPU is for a screen alone.
	display bool
	// notInFabric says that the fabric manager has not connected it to the machine's NVSwitches.
	notInFabric bool
	// recovery is of the last check.
	recovery recovery
}

// told are the properties that a GPU may lack and that never change.
type told struct {
	uuid                                   string // of the GPU that told it
	brand, architecture, computeCapability string
	smCount                                int
	reservedMiB                            int64
	// migProfiles are what it can be cut into; nil if it was not in MIG mode yet.
	migProfiles []*migProfile
}

func newGPU(timeout time.Duration) *cachedGPU {
	return &cachedGPU{Calls: newCalls(timeout), peers: newCalls(timeout)}
}

// again is the GPU at the beginning of the next reading. Which one it is stays
// known if it can no longer be asked; a GPU that hangs is as it was.
func (c *cachedGPU) again() *cachedGPU {
	next := &cachedGPU{Calls: c.Calls, peers: c.peers, address: c.address, located: c.located, told: c.told,
		failure: c.failure,
		handle:  c.handle, handedOut: c.handedOut, recovery: c.recovery}
	next.gpu = gpu.GPU{UUID: c.gpu.UUID, PCIBusID: c.gpu.PCIBusID}
	return next
}

type pciAddress struct{ domain, bus, device uint32 }

func (a pciAddress) compare(b pciAddress) int {
	return cmp.Or(cmp.Compare(a.domain, b.domain), cmp.Compare(a.bus, b.bus), cmp.Compare(a.device, b.device))
}

// String is the address in sysfs' form. A GPU is always function 0 of its
// device; the others are its audio and USB controllers.
func (a pciAddress) String() string {
	return fmt.Sprintf("%04x:%02x:%02x.0", a.domain, a.bus, a.device)
}

func addressOf(info nvml.PciInfo) pciAddress { return pciAddress{info.Domain, info.Bus, info.Device} }

// find finds the GPU at a position of NVML's order, which one it is and its MIG mode.
func (r *Reader) find(ctx context.Context, c *cachedGPU, i int) error {
	var err error
	c.handle, err = ask(ctx, c.Calls, fmt.Sprintf("opening GPU %d in NVML's order", i), func() (nvml.Device, nvml.Return) {
		return r.lib.DeviceGetHandleByIndex(i)
	})
	if err != nil {
		return err
	}
	// Both are read before either can end the reading: they say which GPU it is.
	pci, pciErr := ask(ctx, c.Calls, "reading the PCI address", c.handle.GetPciInfo)
	if pciErr == nil {
		c.address, c.located = addressOf(pci), true
		c.gpu.PCIBusID = c.address.String()
	}
	uuid, uuidErr := ask(ctx, c.Calls, "reading the UUID", c.handle.GetUUID)
	if uuidErr == nil {
		c.gpu.UUID = uuid
	}
	if err := cmp.Or(pciErr, uuidErr); err != nil {
		return err
	}
	return r.readMIGMode(ctx, c)
}

// fill reads what every GPU must have, then what it may have. It returns why
// the GPU cannot be used.
func (r *Reader) fill(ctx context.Context, c *cachedGPU, i int) error {
	err := r.find(ctx, c, i)
	if err != nil {
		return err
	}
	if c.gpu.Minor, err = r.minor(ctx, c); err != nil {
		return err
	}
	if c.gpu.ProductName, err = ask(ctx, c.Calls, "reading the name", c.handle.GetName); err != nil {
		return err
	}
	c.gpu.Model = gpu.ModelOf(c.gpu.ProductName)
	if c.display = forDisplay(c.gpu.ProductName); c.display {
		return nil
	}
	if err := r.fillMemory(ctx, c); err != nil {
		return err
	}
	if err := r.fillTold(ctx, c); err != nil {
		return err
	}
	r.place(ctx, c)
	if err := r.readFabric(ctx, c); err != nil {
		return err
	}
	if c.gpu.MIG.Enabled {
		return r.readInstances(ctx, c)
	}
	return r.readLanes(ctx, c)
}

// forDisplay reports whether GPUs of that name are for a screen alone, as in a DGX Station. NVIDIA's own components
// know them by the same names (go-nvlib).
func forDisplay(productName string) bool {
	return productName == "DGX Display" || productName == "NVIDIA DGX Display"
}

// fillTold fills what a GPU may lack.
func (r *Reader) fillTold(ctx context.Context, c *cachedGPU) error {
	now, err := r.readTold(ctx, c)
	switch {
	case err == nil:
		if c.told.uuid == now.uuid {
			now.migProfiles = c.told.migProfiles
		}
		c.told = now
	case gone(err) || c.told.uuid != c.gpu.UUID:
		return err
	default:
		klog.FromContext(ctx).V(4).Info("A GPU does not tell a property now, going on with what it told before", "uuid",
			c.gpu.UUID, "err", err)
	}
	c.gpu.Brand, c.gpu.Architecture = c.told.brand, c.told.architecture
	c.gpu.ComputeCapability, c.gpu.SMCount = c.told.computeCapability, c.told.smCount
	c.gpu.ReservedMiB = c.told.reservedMiB
	return nil
}

// readTold fails if a property that the GPU may have cannot be read.
func (r *Reader) readTold(ctx context.Context, c *cachedGPU) (told, error) {
	brand, brandErr := optional(ctx, r, c.Calls, "reading the brand", "nvmlDeviceGetBrand", c.handle.GetBrand)
	arch, archErr := optional(ctx, r, c.Calls, "reading the architecture", "nvmlDeviceGetArchitecture",
		c.handle.GetArchitecture)
	capability, capabilityErr := optional(ctx, r, c.Calls, "reading the compute capability",
		"nvmlDeviceGetCudaComputeCapability", func() ([2]int, nvml.Return) {
			major, minor, ret := c.handle.GetCudaComputeCapability()
			return [2]int{major, minor}, ret
		})
	cores, coresErr := optional(ctx, r, c.Calls, "reading the number of cores", "nvmlDeviceGetNumGpuCores",
		c.handle.GetNumGpuCores)
	reserved, reservedErr := r.reserved(ctx, c)
	if err := cmp.Or(brandErr, archErr, capabilityErr, coresErr, reservedErr); err != nil {
		return told{}, err
	}
	t := told{uuid: c.gpu.UUID, reservedMiB: reserved,
		brand:        r.name(answers{brand: brand}, device.Device.GetBrandAsString),
		architecture: r.name(answers{architecture: arch}, device.Device.GetArchitectureAsString)}
	if capability != [2]int{} {
		t.computeCapability = fmt.Sprintf("%d.%d", capability[0], capability[1])
	}
	t.smCount = smCount(cores, t.computeCapability)
	return t, nil
}

// optional makes a call to a function that the library, the driver or the GPU may
// not have; the value is then zero.
func optional[T any](ctx context.Context, r *Reader, c *bounded.Calls, what, function string,
	call func() (T, nvml.Return)) (T, error) {
	var none T
	if !r.has(function) {
		return none, nil
	}
	value, err := ask(ctx, c, what, call)
	if unsupported(err) {
		return none, nil
	}
	return value, err
}

// answers is a GPU of which the codes are known that go-nvlib has names for. It
// lets go-nvlib name them without asking the GPU, whose errors it would hide.
type answers struct {
	nvml.Device
	brand        nvml.BrandType
	architecture nvml.DeviceArchitecture
}

func (a answers) GetBrand() (nvml.BrandType, nvml.Return) { return a.brand, nvml.SUCCESS }
func (a answers) GetArchitecture() (nvml.DeviceArchitecture, nvml.Return) {
	return a.architecture, nvml.SUCCESS
}

// name is go-nvlib's name of a code; empty if it has none, as for what is newer
// than itself.
func (r *Reader) name(a answers, of func(device.Device) (string, error)) string {
	d, err := r.devices.NewDevice(a)
	if err != nil {
		return ""
	}
	name, err := of(d)
	if err != nil || name == "Unknown" {
		return ""
	}
	return name
}

// place finds the GPU's PCIe root and NUMA node in sysfs; a machine, virtual
// ones above all, may lack either.
func (r *Reader) place(ctx context.Context, c *cachedGPU) {
	logger := klog.FromContext(ctx).V(4)
	fs := deviceattribute.WithFSFromRoot(r.opts.SysFS)
	root, err := deviceattribute.GetPCIeRootAttributeByPCIBusID(c.gpu.PCIBusID, fs)
	if err != nil {
		logger.Info("A GPU's PCIe root is unknown", "pciBusID", c.gpu.PCIBusID, "err", err)
	} else if root.Value.StringValue != nil {
		c.gpu.PCIeRoot = *root.Value.StringValue
	}
	node, err := deviceattribute.GetNUMANodeAttributeByPCIBusID(c.gpu.PCIBusID, deviceattribute.ScalarAttribute, fs)
	if err != nil {
		logger.Info("A GPU's NUMA node is unknown", "pciBusID", c.gpu.PCIBusID, "err", err)
	} else if node.Value.IntValue != nil {
		c.gpu.NUMANode = new(int(*node.Value.IntValue))
	}
}

// fault describes a GPU that cannot be used.
func (c *cachedGPU) fault() gpu.Fault {
	name := c.gpu.PCIBusID
	if name == "" {
		name = "an unknown PCI address"
	}
	f := gpu.Fault{Index: c.gpu.Index, UUID: c.gpu.UUID}
	switch {
	case errors.Is(c.failure, errWSL):
		f.Reason = gpu.FaultUnreadable
		f.Message = fmt.Sprintf("at %s: %v", name, c.failure)
	case errors.Is(c.failure, nvml.ERROR_GPU_IS_LOST):
		f.Reason = gpu.FaultLost
		f.Message = fmt.Sprintf("at %s: %v: the GPU has fallen off the bus: look for Xid errors in the kernel log and "+
			"reboot the node", name, c.failure)
	default:
		f.Reason = gpu.FaultUnreadable
		f.Message = fmt.Sprintf("at %s: %v: see what nvidia-smi -q says of the GPU and look for Xid errors in the kernel log",
			name, c.failure)
	}
	return f
}

// smCount derives the number of streaming multiprocessors, which NVML does not
// tell of a whole GPU, from that of CUDA cores, which it does. Cores per
// multiprocessor are FP32 results per clock in the CUDA C++ Programming
// Guide's table of arithmetic throughput.
func smCount(cores int, computeCapability string) int {
	switch computeCapability {
	case "":
		return 0
	case "6.0", "7.0", "7.2", "7.5", "8.0":
		return cores / 64
	}
	return cores / 128
}
