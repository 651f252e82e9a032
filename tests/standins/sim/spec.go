// SPDX-License-Identifier: Apache-2.0

// Package sim simulates the NVIDIA GPUs of a node from a machine file.
//
// A machine file (demo/machines has some) says which GPUs a node has, where
// they sit on the PCIe bus and what links them. From it this package makes
//
//   - a driver root with the device nodes, driver libraries and sysfs entries
//     that a real node has, above all an NVML library (tests/standins/nvmllib) that
//     answers as the machine file says, and
//   - an nvml.Interface, built on go-nvml's own mock, for unit tests of what
//     reads GPUs (pkg/gpu/nvml): a process can have many of these.
//
// Both tell the same. What is wrong with a GPU, and how it is used, can be
// changed while programs use the driver root (Change, Inject).
package sim

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"

	"go.yaml.in/yaml/v3"
)

// Kind and Version are what a machine file of this package's format declares.
const (
	Kind    = "SimulatedMachine"
	Version = 1
)

// Spec is a machine file: one node's GPUs. Index, in this package, is a
// GPU's position in GPUs; the position in the order of PCI bus ids, which
// the rest of the product calls index, is found by pkg/gpu/nvml.
type Spec struct {
	Kind    string `yaml:"kind"`
	Version int    `yaml:"version"`
	// Name identifies the machine file. Together with Node it seeds the UUIDs.
	Name string `yaml:"name"`
	// Node is the node that this machine belongs to; see ForNode.
	Node   string           `yaml:"node,omitempty"`
	Driver Driver           `yaml:"driver"`
	Models map[string]Model `yaml:"models"`
	GPUs   []GPU            `yaml:"cards"`
	// NVLinks are the direct NVLink connections between two GPUs.
	NVLinks []NVLink `yaml:"nvlinks,omitempty"`
	// NVSwitchLanes is the number of NVLink lanes that each GPU has to
	// NVSwitches; 0 if there are none.
	NVSwitchLanes int `yaml:"nvswitchLanes,omitempty"`
	// Events are what happened, in the order of their numbers.
	Events []Event `yaml:"events,omitempty"`
}

// Driver is the NVIDIA driver that the machine pretends to run.
type Driver struct {
	// Version is the driver's version, e.g. "570.124.06".
	Version string `yaml:"version"`
	// CUDA is the highest CUDA version it supports, as "major.minor".
	CUDA string `yaml:"cuda"`
	// Lacks are functions that the NVML library does not have, as in older drivers.
	Lacks []string `yaml:"lacks,omitempty"`
	// MemoryLimits is how the driver counts the memory of control groups that it limits: one of
	// MemoryLimitModes; where it is empty, as on a kernel that does not count it. A driver before
	// release 615 limits none.
	MemoryLimits string `yaml:"memoryLimits,omitempty"`
	// Errors maps what is asked of the driver as a whole – init, version, cuda, count –
	// to an error, as Fault.Errors does.
	Errors map[string]string `yaml:"errors,omitempty"`
}

// Model is a kind of GPU.
type Model struct {
	// ProductName is NVML's device name, e.g. "Tesla V100-SXM2-16GB".
	ProductName string `yaml:"productName"`
	// Brand and Architecture are spelled as gpu.GPU spells them; Brands and
	// Architectures list what is known.
	Brand        string `yaml:"brand"`
	Architecture string `yaml:"architecture"`
	// ComputeCapability is "major.minor".
	ComputeCapability string `yaml:"computeCapability"`
	// MemoryMiB is the GPU's memory in MiB.
	MemoryMiB int64 `yaml:"memoryMiB"`
	// ReservedMiB is what the driver keeps of it, which it tells since release 510.
	ReservedMiB int64 `yaml:"reservedMiB,omitempty"`
	// CUDACores is the number of CUDA cores; NVML reports cores, not
	// streaming multiprocessors.
	CUDACores int `yaml:"cudaCores"`
	// PCIDeviceID is device and vendor id as NVML packs them, e.g. 0x1DB110DE.
	PCIDeviceID uint32 `yaml:"pciDeviceID"`
	// MIG says that the GPU has a MIG mode, enabled or not.
	MIG bool `yaml:"mig,omitempty"`
	// MIGProfiles names what it can be cut into; MIGTables lists the names. Without it cannot be cut.
	MIGProfiles string `yaml:"migProfiles,omitempty"`
}

// GPU is one GPU in its slot.
type GPU struct {
	// Model is a key of Spec.Models.
	Model string `yaml:"model"`
	// BusID is the PCI address in sysfs' form, "0000:3b:00.0".
	BusID string `yaml:"busID"`
	// Root is the PCIe root complex, "pci0000:3a"; Bridges are the PCI
	// addresses of the bridges from there to the GPU. Both together give the
	// GPU's place in sysfs and its PCIe distance to the other GPUs.
	Root    string   `yaml:"root"`
	Bridges []string `yaml:"bridges,omitempty"`
	// NUMANode is the NUMA node; absent if the machine does not tell.
	NUMANode *int `yaml:"numaNode,omitempty"`
	// UUID is the GPU's UUID; by default it is derived from Spec.Name,
	// Spec.Node and the GPU's position.
	UUID string `yaml:"uuid,omitempty"`
	// Minor is N of /dev/nvidiaN; by default the GPU's position.
	Minor *int `yaml:"minor,omitempty"`
	// NVSwitchLanes is how many of Spec.NVSwitchLanes this GPU has, as on a machine
	// on which some are down; by default all of them.
	NVSwitchLanes *int `yaml:"nvswitchLanes,omitempty"`
	// MemoryLimits is Driver.MemoryLimits of this GPU alone. A real driver counts all GPUs alike;
	// tests have both ways on one node.
	MemoryLimits string `yaml:"memoryLimits,omitempty"`
	MIG          MIG    `yaml:"mig,omitempty"`
	Fault        Fault  `yaml:"fault,omitempty"`
	State        State  `yaml:"state,omitempty"`
}

// Fault is what is wrong with a GPU.
type Fault struct {
	// Lost makes every call on the GPU return GPU_IS_LOST.
	Lost bool `yaml:"lost,omitempty"`
	// Hangs keeps every call on the GPU from returning.
	Hangs bool `yaml:"hangs,omitempty"`
	// IgnoresMemoryLimits makes the driver accept limits of memory that it does not apply.
	IgnoresMemoryLimits bool `yaml:"ignoresMemoryLimits,omitempty"`
	// Errors maps a property to what NVML answers instead of its value: the
	// name of an NVML error without "ERROR_", e.g. "NOT_SUPPORTED", or "HANG"
	// for a call that does not return. Properties and Returns list both.
	Errors map[Property]string `yaml:"errors,omitempty"`
}

// NVLink is a direct connection between two GPUs, given by their positions.
type NVLink struct {
	GPUs  []int `yaml:"cards,flow"` // two
	Lanes int   `yaml:"lanes"`
	// LanesBack is how many of the lanes the second GPU has too, as on a
	// machine whose NVLink is broken; by default all of them.
	LanesBack *int `yaml:"lanesBack,omitempty"`
}

// Load reads and checks a machine file. Its errors name the file, and the
// line or the field that is wrong.
func Load(path string) (*Spec, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("reading machine file: %w", err)
	}
	s, err := Parse(data)
	if err != nil {
		return nil, fmt.Errorf("machine file %s: %w", path, err)
	}
	return s, nil
}

// Parse decodes and checks the contents of a machine file. Unknown and
// repeated fields are errors.
func Parse(data []byte) (*Spec, error) {
	dec := yaml.NewDecoder(bytes.NewReader(data))
	dec.KnownFields(true)
	s := &Spec{}
	if err := dec.Decode(s); err != nil {
		if errors.Is(err, io.EOF) {
			return nil, errors.New("is empty")
		}
		return nil, err
	}
	if err := dec.Decode(&yaml.Node{}); !errors.Is(err, io.EOF) {
		return nil, errors.New("holds more than one YAML document")
	}
	if err := checkWholeNumbers(data); err != nil {
		return nil, err
	}
	if err := s.validate(); err != nil {
		return nil, err
	}
	return s, nil
}

// checkWholeNumbers refuses fractions: the decoder would round them, and the
// format has none.
func checkWholeNumbers(data []byte) error {
	var document yaml.Node
	if err := yaml.Unmarshal(data, &document); err != nil {
		return err
	}
	var check func(n *yaml.Node) error
	check = func(n *yaml.Node) error {
		if n.Kind == yaml.ScalarNode && n.Tag == "!!float" {
			return fmt.Errorf("line %d: %s is not a whole number; if it is meant as text, quote it", n.Line, n.Value)
		}
		for _, child := range n.Content {
			if err := check(child); err != nil {
				return err
			}
		}
		return nil
	}
	return check(&document)
}

// ForNode returns the same machine as that node has it: its GPUs have UUIDs
// of their own, always the same for the same node. The empty name is a node
// like any other.
func (s *Spec) ForNode(node string) *Spec {
	c := *s
	c.Node = node
	return &c
}
