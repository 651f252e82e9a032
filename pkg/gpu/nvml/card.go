package nvml

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"k8s.io/dynamic-resource-allocation/deviceattribute"
	"k8s.io/klog/v2"

	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
)

// card is one card while it is read.
type card struct {
	calls
	gpu     gpu.GPU
	handle  nvml.Device
	address pciAddress
	located bool // address is known
	lanes   []lane
	// failure is why the card cannot be used; nil if it can.
	failure error
}

// errMIGEnabled is the failure of a card in MIG mode.
var errMIGEnabled = errors.New("the card is in MIG mode, which this driver does not share")

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

// readCard reads the card that NVML lists at position i.
func (r *reader) readCard(ctx context.Context, i int) *card {
	c := &card{calls: calls{timeout: r.timeout}}
	c.failure = r.fill(ctx, c, i)
	return c
}

// fill reads what every card must have, then what it may have. It returns why
// the card cannot be used.
func (r *reader) fill(ctx context.Context, c *card, i int) error {
	var err error
	c.handle, err = ask(ctx, &c.calls, fmt.Sprintf("opening card %d in NVML's order", i), func() (nvml.Device, nvml.Return) {
		return r.lib.DeviceGetHandleByIndex(i)
	})
	if err != nil {
		return err
	}
	// Both are read before either can end the reading: they say which card it is.
	pci, pciErr := ask(ctx, &c.calls, "reading the PCI address", c.handle.GetPciInfo)
	if pciErr == nil {
		c.address, c.located = addressOf(pci), true
		c.gpu.PCIBusID = c.address.String()
	}
	uuid, uuidErr := ask(ctx, &c.calls, "reading the UUID", c.handle.GetUUID)
	c.gpu.UUID = uuid
	if err := cmp.Or(pciErr, uuidErr); err != nil {
		return err
	}
	if err := r.checkMIG(ctx, c); err != nil {
		return err
	}
	if c.gpu.Minor, err = ask(ctx, &c.calls, "reading the minor number", c.handle.GetMinorNumber); err != nil {
		return err
	}
	if c.gpu.ProductName, err = ask(ctx, &c.calls, "reading the name", c.handle.GetName); err != nil {
		return err
	}
	c.gpu.Model = gpu.ModelOf(c.gpu.ProductName)
	memory, err := ask(ctx, &c.calls, "reading the memory", c.handle.GetMemoryInfo)
	if err != nil {
		return err
	}
	c.gpu.MemoryMiB = int64(memory.Total >> 20)
	return r.fillOptional(ctx, c)
}

// fillOptional reads what a card may lack. It fails only where that shows that
// the card answers no more.
func (r *reader) fillOptional(ctx context.Context, c *card) error {
	d, err := r.devices.NewDevice(c.handle)
	if err != nil {
		return fmt.Errorf("opening the card: %w", err)
	}
	if c.gpu.Brand, err = optional(ctx, c, "reading the brand", d.GetBrandAsString); err != nil {
		return err
	}
	if r.has("nvmlDeviceGetArchitecture") {
		if c.gpu.Architecture, err = optional(ctx, c, "reading the architecture", d.GetArchitectureAsString); err != nil {
			return err
		}
	}
	if c.gpu.ComputeCapability, err = optional(ctx, c, "reading the compute capability", d.GetCudaComputeCapabilityAsString); err != nil {
		return err
	}
	if r.has("nvmlDeviceGetNumGpuCores") {
		cores, err := optional(ctx, c, "reading the number of cores", func() (int, error) {
			cores, ret := c.handle.GetNumGpuCores()
			return cores, asError(ret)
		})
		if err != nil {
			return err
		}
		c.gpu.SMCount = smCount(cores, c.gpu.ComputeCapability)
	}
	r.place(ctx, c)
	return r.readLanes(ctx, c)
}

// optional makes a call whose failure the card survives, with the value empty,
// unless it shows that the card is gone. "Unknown" is no value either.
func optional[T comparable](ctx context.Context, c *card, what string, call func() (T, error)) (T, error) {
	var none T
	value, err := try(ctx, &c.calls, what, call)
	switch {
	case err == nil:
		if any(value) == any("Unknown") {
			return none, nil
		}
		return value, nil
	case gone(err):
		return none, err
	case !unsupported(err):
		klog.FromContext(ctx).V(2).Info("A card does not tell a property, going on without", "pciBusID", c.gpu.PCIBusID, "uuid", c.gpu.UUID, "err", err)
	}
	return none, nil
}

func asError(ret nvml.Return) error {
	if ret == nvml.SUCCESS {
		return nil
	}
	return ret
}

// checkMIG fails if the card is in MIG mode, or may be.
func (r *reader) checkMIG(ctx context.Context, c *card) error {
	if !r.has("nvmlDeviceGetMigMode") {
		return nil
	}
	mode, err := ask(ctx, &c.calls, "reading the MIG mode", func() (int, nvml.Return) {
		current, _, ret := c.handle.GetMigMode()
		return current, ret
	})
	switch {
	case unsupported(err):
		return nil
	case err != nil:
		return err
	case mode == nvml.DEVICE_MIG_ENABLE:
		return errMIGEnabled
	}
	return nil
}

// place finds the card's PCIe root and NUMA node in sysfs; a machine, virtual
// ones above all, may lack either.
func (r *reader) place(ctx context.Context, c *card) {
	logger := klog.FromContext(ctx).V(4)
	fs := deviceattribute.WithFSFromRoot(r.sysfs)
	root, err := deviceattribute.GetPCIeRootAttributeByPCIBusID(c.gpu.PCIBusID, fs)
	if err != nil {
		logger.Info("A card's PCIe root is unknown", "pciBusID", c.gpu.PCIBusID, "err", err)
	} else if root.Value.StringValue != nil {
		c.gpu.PCIeRoot = *root.Value.StringValue
	}
	node, err := deviceattribute.GetNUMANodeAttributeByPCIBusID(c.gpu.PCIBusID, deviceattribute.ScalarAttribute, fs)
	if err != nil {
		logger.Info("A card's NUMA node is unknown", "pciBusID", c.gpu.PCIBusID, "err", err)
	} else if node.Value.IntValue != nil {
		c.gpu.NUMANode = new(int(*node.Value.IntValue))
	}
}

// fault describes a card that cannot be used.
func (c *card) fault(ctx context.Context) gpu.Fault {
	name := c.gpu.PCIBusID
	if name == "" {
		name = "an unknown PCI address"
	}
	f := gpu.Fault{Index: c.gpu.Index, UUID: c.gpu.UUID}
	switch {
	case errors.Is(c.failure, errMIGEnabled):
		f.Reason = gpu.FaultMIGEnabled
		f.Message = fmt.Sprintf("at %s: %v: disable MIG (nvidia-smi -i %s -mig 0) to use the card here", name, c.failure, name)
	case errors.Is(c.failure, nvml.ERROR_GPU_IS_LOST):
		f.Reason = gpu.FaultLost
		f.Message = fmt.Sprintf("at %s: %v: the card has fallen off the bus: look for Xid errors in the kernel log and reboot the node", name, c.failure)
	default:
		f.Reason = gpu.FaultUnreadable
		f.Message = fmt.Sprintf("at %s: %v: see what nvidia-smi -q says of the card and look for Xid errors in the kernel log", name, c.failure)
	}
	klog.FromContext(ctx).Error(c.failure, "A card is left out", "index", f.Index, "uuid", f.UUID, "pciBusID", c.gpu.PCIBusID, "reason", f.Reason)
	return f
}

// smCount derives the number of streaming multiprocessors, which NVML does not
// tell of a whole card, from that of CUDA cores, which it does. Cores per
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
