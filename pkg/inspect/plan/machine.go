// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/gpushare/dra-driver-gpushare/deviceclasses"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/devices"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
	"github.com/gpushare/dra-driver-gpushare/pkg/mode"
)

// sharesOfMPS is how many shares of a GPU MPS keeps apart.
const sharesOfMPS = 48

// backend is what isolates the shares of a mode, as devices show it.
type backend struct {
	name, level string
	shares      int64
}

// backendOf is what the driver chooses by default (pkg/node/isolation): Alibaba's module where it
// is loaded.
func backendOf(m mode.Mode, module bool) backend {
	switch {
	case m == mode.Share:
		return backend{"none", "none", mode.DefaultSlots}
	case m == mode.MPS || m.Shared() && !module:
		return backend{"mps", "cooperative", sharesOfMPS}
	case m.Shared():
		return backend{"cgpu", "kernel", mode.DefaultSlots}
	default:
		return backend{"whole-card", "card", 0}
	}
}

// Classes are the DeviceClasses of a new installation with these models of GPUs.
func Classes(models []string) ([]*resourceapi.DeviceClass, error) {
	all, err := deviceclasses.All()
	if err != nil {
		return nil, err
	}
	modes, err := deviceclasses.ModesWithClass()
	if err != nil {
		return nil, err
	}
	slices.Sort(models)
	for _, model := range slices.Compact(models) {
		of, err := deviceclasses.Model(model, modes)
		if err != nil {
			return nil, fmt.Errorf("make the DeviceClasses of model %s: %w", model, err)
		}
		all = append(all, of...)
	}
	return all, nil
}

// Published are the ResourceSlices that the driver would publish of a node with these GPUs and
// labels, of which nothing is allocated. module says that Alibaba's module is loaded. An error
// is why it would publish nothing.
func Published(node *corev1.Node, m *gpu.Machine, module bool) ([]*resourceapi.ResourceSlice, error) {
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
		b := backendOf(served, module)
		slots := b.shares
		if served.Shared() {
			limit := int64(mode.MaxSlots)
			if b.name == "mps" {
				limit = sharesOfMPS
			}
			if slots, err = mode.SlotsFromLabels(node.Labels, b.shares, limit); err != nil {
				return nil, err
			}
		}
		o := devices.Options{Pool: pool, Mode: served, Slots: slots, Isolation: b.name, IsolationLevel: b.level,
			MIG: devices.MIGOptions{Isolation: "mig", Level: "kernel"}}
		if where == mode.Spread {
			o.Limits = map[string]gpu.Amount{}
			for _, g := range m.GPUs {
				o.Limits[g.UUID] = gpu.Amount{Units: g.MemoryUnits(), Shares: slots}
			}
		}
		all = append(all, o)
	}
	resources := devices.Build(m, all[0])
	if asked.Mode == mode.Dynamic {
		resources = devices.BuildDynamic(m, all)
	}
	var out []*resourceapi.ResourceSlice
	for i, slice := range resources.Pools[pool].Slices {
		out = append(out, &resourceapi.ResourceSlice{
			ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("%05d-%s", i, node.Name)},
			Spec: resourceapi.ResourceSliceSpec{
				Driver: v1alpha1.DriverName, NodeName: ptr.To(node.Name), Devices: slice.Devices,
				SharedCounters: slice.SharedCounters, Pool: resourceapi.ResourcePool{Name: pool, Generation: 1,
					ResourceSliceCount: int64(len(resources.Pools[pool].Slices))},
			},
		})
	}
	return publishedAfter(out, nil, node.Name), nil
}
