// SPDX-License-Identifier: Apache-2.0

package manifests

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"sigs.k8s.io/yaml"

	"github.com/gpushare/dra-driver-gpushare/deviceclasses"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/ack"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
	"github.com/gpushare/dra-driver-gpushare/pkg/inspect/fromack"
	"github.com/gpushare/dra-driver-gpushare/pkg/inspect/plan"
	"github.com/gpushare/dra-driver-gpushare/pkg/inspect/published"
)

// machineFile is what a machine file (demo/machines) says of a node's GPUs, as far as it is
// published.
type machineFile struct {
	Kind   string `json:"kind"`
	Driver struct {
		Version string `json:"version"`
		CUDA    string `json:"cuda"`
	} `json:"driver"`
	Models map[string]struct {
		ProductName       string `json:"productName"`
		Brand             string `json:"brand"`
		Architecture      string `json:"architecture"`
		ComputeCapability string `json:"computeCapability"`
		MemoryMiB         int64  `json:"memoryMiB"`
		ReservedMiB       int64  `json:"reservedMiB"`
	} `json:"models"`
	GPUs          []machineGPU `json:"cards"`
	NVLinks       []nvlink     `json:"nvlinks"`
	NVSwitchLanes int          `json:"nvswitchLanes"`
}

type machineGPU struct {
	Model         string   `json:"model"`
	BusID         string   `json:"busID"`
	Root          string   `json:"root"`
	Bridges       []string `json:"bridges"`
	NUMANode      *int     `json:"numaNode"`
	Minor         *int     `json:"minor"`
	NVSwitchLanes *int     `json:"nvswitchLanes"`
	Fault         any      `json:"fault"`
	MIG           struct {
		Enabled   bool `json:"enabled"`
		Instances []struct {
			Profile string `json:"profile"`
			Start   int    `json:"start"`
		} `json:"instances"`
	} `json:"mig"`
}

type nvlink struct {
	GPUs      []int `json:"cards"`
	Lanes     int   `json:"lanes"`
	LanesBack *int  `json:"lanesBack"`
}

// machineKind is what machine files say that they are.
const machineKind = "SimulatedMachine"

// Machines makes the cluster of nodes that are given as NAME=FILE[:MODE[:PLACEMENT]], with
// mode and placement as the labels of nodes have them.
func Machines(specs []string) (plan.Input, error) {
	var in plan.Input
	var models []string
	for _, spec := range specs {
		node, machine, err := readMachine(spec)
		if err != nil {
			return in, fmt.Errorf("machine %s: %w", spec, err)
		}
		if slices.ContainsFunc(in.Nodes, func(n *corev1.Node) bool { return n.Name == node.Name }) {
			return in, fmt.Errorf("machine %s: there is a node %s already", spec, node.Name)
		}
		offered, err := published.Of(node, machine, false)
		if err != nil {
			return in, fmt.Errorf("machine %s: %w", spec, err)
		}
		in.Nodes, in.Slices = append(in.Nodes, node), append(in.Slices, offered...)
		in.Notes = append(in.Notes, notesOf(node.Name, machine)...)
		for _, g := range machine.GPUs {
			models = append(models, g.Model)
		}
	}
	var err error
	in.Snapshot.Classes, err = deviceclasses.With(models)
	return in, err
}

func readMachine(spec string) (*corev1.Node, *gpu.Machine, error) {
	name, rest, ok := strings.Cut(spec, "=")
	parts := strings.Split(rest, ":")
	if !ok || rest == "" || len(parts) > 3 {
		return nil, nil, errors.New("write NAME=FILE[:MODE[:PLACEMENT]], as in n1=demo/machines/v100x4.yaml:share")
	}
	if problems := validation.IsDNS1123Subdomain(name); len(problems) > 0 {
		return nil, nil, fmt.Errorf("the name of the node %q: %s", name, strings.Join(problems, ", "))
	}
	data, err := os.ReadFile(parts[0])
	if err != nil {
		return nil, nil, fmt.Errorf("read the machine file: %w", err)
	}
	var f machineFile
	if err := yaml.Unmarshal(data, &f); err != nil {
		return nil, nil, fmt.Errorf("read the machine file %s: %w", parts[0], oneLine(err))
	}
	machine, err := f.machine(name)
	if err != nil {
		return nil, nil, fmt.Errorf("read the machine file %s: %w", parts[0], err)
	}
	all := machine.All()
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{
		corev1.LabelHostname: name, ack.NodeLabelModel: deviceclasses.LabelValue(all[0].Model),
		ack.NodeLabelMemory: fmt.Sprintf("%dMiB", all[0].MemoryMiB),
		ack.NodeLabelCount:  fmt.Sprint(len(all)),
	}}}
	for i, label := range []string{ack.NodeLabelSchedule, ack.NodeLabelPlacement} {
		if len(parts) > i+1 {
			node.Labels[label] = parts[i+1]
		}
	}
	return node, machine, nil
}

// notesOf says what is not planned of the GPUs in MIG mode, or not as it is.
func notesOf(node string, m *gpu.Machine) []string {
	for _, p := range m.Partitioned {
		if len(p.Instances) > 0 {
			return []string{fmt.Sprintf("The memory of MIG instances of %s is taken from the names of their profiles, and may "+
				"be a little less.", node)}
		}
	}
	return nil
}

// machine are the GPUs of a node as the driver reads them. Those with a fault are left out, and those in MIG mode
// that are not cut: what they can be cut into no machine file says.
func (f *machineFile) machine(node string) (*gpu.Machine, error) {
	if f.Kind != machineKind {
		return nil, fmt.Errorf("its kind is %q, not %s: see demo/machines", f.Kind, machineKind)
	}
	m := &gpu.Machine{DriverVersion: f.Driver.Version, CUDADriverVersion: f.Driver.CUDA}
	order := make([]int, len(f.GPUs))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(f.GPUs[a].BusID, f.GPUs[b].BusID) })
	var left []int
	for index, position := range order {
		c := &f.GPUs[position]
		model, ok := f.Models[c.Model]
		if !ok || model.MemoryMiB <= 0 || model.ProductName == "" {
			return nil, fmt.Errorf("GPU %d: the file has no model %q with a productName and memoryMiB", position, c.Model)
		}
		if c.Fault != nil || c.MIG.Enabled && len(c.MIG.Instances) == 0 {
			continue
		}
		minor := position
		if c.Minor != nil {
			minor = *c.Minor
		}
		g := gpu.GPU{
			Index: index, UUID: fmt.Sprintf("GPU-%s-%d", node, index), Minor: minor, Model: gpu.ModelOf(model.ProductName),
			ProductName: model.ProductName, Brand: model.Brand, Architecture: model.Architecture,
			ComputeCapability: model.ComputeCapability, MemoryMiB: model.MemoryMiB, ReservedMiB: model.ReservedMiB,
			PCIBusID: c.BusID, PCIeRoot: c.Root, NUMANode: c.NUMANode,
		}
		if !c.MIG.Enabled {
			left, m.GPUs = append(left, position), append(m.GPUs, g)
			continue
		}
		cut := gpu.Partitioned{GPU: g}
		for n, i := range c.MIG.Instances {
			instance, is := fromack.InstanceOf(i.Profile)
			if !is {
				return nil, fmt.Errorf("GPU %d: %q is no MIG profile, as in 1g.10gb", position, i.Profile)
			}
			instance.Start, instance.UUID = i.Start, fmt.Sprintf("MIG-%s-%d-%d", node, index, n)
			cut.Instances = append(cut.Instances, instance)
		}
		m.Partitioned = append(m.Partitioned, cut)
	}
	if len(m.GPUs)+len(m.Partitioned) == 0 {
		return nil, errors.New("it has no GPUs that a plan takes: those with a fault, and those in MIG mode that are not " +
			"cut, are left out")
	}
	for i, a := range m.GPUs {
		for j, b := range m.GPUs[i+1:] {
			m.Links = append(m.Links, f.link(a, b, left[i], left[i+1+j]))
		}
	}
	return m, nil
}
