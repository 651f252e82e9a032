// SPDX-License-Identifier: Apache-2.0

package publish

import (
	"context"
	"slices"

	resourceapi "k8s.io/api/resource/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/dynamic-resource-allocation/resourceslice"

	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/devices"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/cluster"
)

func (p *Publisher) pool() string { return v1alpha1.PoolName(p.NodeName) }

// stored lists the node's slices as the API server has them.
func (p *Publisher) stored(ctx context.Context) ([]resourceapi.ResourceSlice, error) {
	return cluster.StoredSlices(ctx, p.Client, p.NodeName)
}

// allClosed reports whether no stored device is open to new claims in the midst of
// a change of the mode.
func allClosed(stored []resourceapi.ResourceSlice) bool {
	for _, s := range stored {
		for _, d := range s.Spec.Devices {
			if _, m, err := devices.ParseDeviceName(d.Name); err == nil && !m.OfNode() {
				continue // in the way of no mode
			}
			if !slices.ContainsFunc(d.Taints, func(t resourceapi.DeviceTaint) bool { return t.Key == v1alpha1.TaintSwitching }) {
				return false
			}
		}
	}
	return true
}

// holds reports whether the stored slices are those of the resources.
func holds(stored []resourceapi.ResourceSlice, resources resourceslice.DriverResources) bool {
	want := 0
	for _, pool := range resources.Pools {
		want += len(pool.Slices)
		for _, slice := range pool.Slices {
			if !slices.ContainsFunc(stored, func(s resourceapi.ResourceSlice) bool {
				return resourceslice.DevicesDeepEqual(s.Spec.Devices, slice.Devices) &&
					apiequality.Semantic.DeepEqual(s.Spec.SharedCounters, slice.SharedCounters)
			}) {
				return false
			}
		}
	}
	return len(stored) == want
}
