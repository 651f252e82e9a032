// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu/nvml"
	"github.com/gpushare/dra-driver-gpushare/tests/bench/internal/nodes"
	"github.com/gpushare/dra-driver-gpushare/tests/standins/sim"
)

// fleet is a number of equal nodes, with GPUs of their own.
type fleet struct {
	nodes []*corev1.Node
	// machinesDir has the machine files, and dir is where the parts of sysfs
	// go that belong to their GPUs.
	machinesDir, dir string
	publisher        *nodes.Publisher
	// read are the GPUs of each node, by name of the machine file.
	read map[string][]*gpu.Machine
}

// much is what nodes have beside GPUs: of all that pods want.
var much = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("96"),
	corev1.ResourceMemory: resource.MustParse("768Gi"), corev1.ResourceEphemeralStorage: resource.MustParse("1Ti"),
	corev1.ResourcePods: resource.MustParse("110")}

func newFleet(size int, machinesDir, dir string) *fleet {
	f := &fleet{machinesDir: machinesDir, dir: dir, publisher: nodes.NewPublisher(),
		read: map[string][]*gpu.Machine{}}
	for i := range size {
		f.nodes = append(f.nodes, nodes.New(fmt.Sprintf("scale-%04d", i), much))
	}
	return f
}

// machines are the nodes' GPUs, as the product reads them.
func (f *fleet) machines(ctx context.Context, name string) ([]*gpu.Machine, error) {
	if machines, ok := f.read[name]; ok {
		return machines, nil
	}
	spec, err := sim.Load(filepath.Join(f.machinesDir, name+".yaml"))
	if err != nil {
		return nil, err
	}
	root := filepath.Join(f.dir, name)
	if err := os.MkdirAll(root, 0o755); err != nil {
		return nil, fmt.Errorf("simulate machine %s: %w", name, err)
	}
	if err := spec.WriteRoot(root); err != nil {
		return nil, fmt.Errorf("simulate machine %s: %w", name, err)
	}
	machines := make([]*gpu.Machine, 0, len(f.nodes))
	for _, n := range f.nodes {
		machine, err := nvml.Read(ctx, spec.ForNode(n.Name).NVML(), nvml.Options{SysFS: filepath.Join(root, sim.SysDir)})
		if err != nil {
			return nil, fmt.Errorf("read the GPUs of machine %s: %w", name, err)
		}
		machines = append(machines, machine)
	}
	f.read[name] = machines
	return machines, nil
}

// published are the ResourceSlices of all nodes in a mode, node by node.
func (f *fleet) published(ctx context.Context, c contestant) ([][]*resourceapi.ResourceSlice, error) {
	machines, err := f.machines(ctx, c.machine)
	if err != nil {
		return nil, err
	}
	out := make([][]*resourceapi.ResourceSlice, len(machines))
	for i, machine := range machines {
		if out[i], err = f.publisher.Slices(f.nodes[i], machine, c.mode, nil); err != nil {
			return nil, err
		}
	}
	return out, nil
}
