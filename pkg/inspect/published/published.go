// SPDX-License-Identifier: Apache-2.0

// Package published is what the driver would publish of a node: of one where it does not run yet, and once claims use
// more of one. It decides by the driver's own functions (pkg/mode, pkg/usage, pkg/devices). It is pure.
package published

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/dynamic-resource-allocation/resourceslice"

	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/devices"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
	"github.com/gpushare/dra-driver-gpushare/pkg/mode"
)

// Of are the ResourceSlices that the driver would publish of a node with these GPUs and labels, of which nothing
// is allocated. module is whether Alibaba's module is loaded; what NVIDIA's kernel driver can limit is known on the
// node alone. An error is why it would publish nothing.
func Of(node *corev1.Node, m *gpu.Machine, module bool) ([]*resourceapi.ResourceSlice, error) {
	asked, err := mode.FromLabels(node.Labels, mode.Asked{})
	if err != nil {
		return nil, err
	}
	where, err := mode.PlacementFromLabels(node.Labels)
	if err != nil {
		return nil, err
	}
	pool := v1alpha1.PoolName(node.Name)
	var all []devices.Options
	for _, served := range asked.Mode.ServedModes() {
		by, mig := mode.AutoIsolation(served, module, false), mode.AutoIsolation(mode.MIG, module, false)
		o := devices.Options{Pool: pool, Mode: served, Isolation: by.Name, IsolationLevel: string(by.Level),
			MIG: devices.MIGOptions{Isolation: mig.Name, Level: string(mig.Level)}}
		def, limit := mode.SlotLimits(by.Shares)
		o.Slots, _ = mode.SlotsFromLabels(node.Labels, def, limit) // the driver takes the default, and tells of it
		if where == mode.Spread {
			o.Limits = map[string]gpu.Amount{}
			for _, g := range m.GPUs {
				o.Limits[g.UUID] = gpu.Amount{Units: g.MemoryUnits(), Shares: o.Slots}
			}
		}
		all = append(all, o)
	}
	resources := devices.Build(m, all[0])
	if asked.Mode == mode.Dynamic {
		resources = devices.BuildDynamic(m, all)
	}
	return After(Slices(node.Name, resources), nil, node.Name), nil
}

// Slices returns the ResourceSlices by which a node publishes its devices.
func Slices(node string, resources resourceslice.DriverResources) []*resourceapi.ResourceSlice {
	var out []*resourceapi.ResourceSlice
	for name, pool := range resources.Pools {
		for i, slice := range pool.Slices {
			out = append(out, &resourceapi.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("%05d-%s", i, node)},
				Spec: devices.SliceSpec(node, name, pool, slice)})
		}
	}
	return out
}
