// SPDX-License-Identifier: Apache-2.0

package publish

import (
	"context"
	"fmt"
	"slices"

	resourceapi "k8s.io/api/resource/v1"

	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/claim"
	"github.com/gpushare/dra-driver-gpushare/pkg/devices"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/cluster"
)

// retainedSets are the linked sets that were published before. What is published
// of a machine depends on all its GPUs: without one of them, sets go. But the
// scheduler counts the GPUs of an allocated set as taken only while the set is
// published (kubernetes/kubernetes issue 140802); so it stays, closed to new claims.
type retainedSets struct {
	machine *gpu.Machine
	sets    [][]int
}

// setsToRetain lists what may have to stay published in mode Topology, among it sets that the
// machine still has.
func (p *Publisher) setsToRetain(ctx context.Context, s snapshot) ([][]int, error) {
	stored, err := p.stored(ctx)
	if err != nil {
		return nil, fmt.Errorf("look up which sets of GPUs were published: %w", err)
	}
	allocated, err := p.allocatedDevices(ctx, s)
	if err != nil {
		return nil, err
	}
	return mayBeAllocated(stored, allocated), nil
}

// mayBeAllocated lists the sets that claims have, by the devices that are allocated,
// or may be about to get: those that are stored open. It is in ascending order.
func mayBeAllocated(stored []resourceapi.ResourceSlice, allocated []string) [][]int {
	names := slices.Clone(allocated)
	for _, s := range stored {
		for _, d := range s.Spec.Devices {
			if !slices.ContainsFunc(d.Taints, devices.IsTaint(v1alpha1.TaintWithdrawn)) {
				names = append(names, d.Name)
			}
		}
	}
	var sets [][]int
	for _, name := range names {
		if indices, _, err := devices.ParseDeviceName(name); err == nil && len(indices) > 1 {
			sets = append(sets, indices)
		}
	}
	slices.SortFunc(sets, slices.Compare)
	return slices.CompactFunc(sets, slices.Equal)
}

// allocatedDevices lists the devices of the pool that are allocated or prepared.
func (p *Publisher) allocatedDevices(ctx context.Context, s snapshot) ([]string, error) {
	var names []string
	err := cluster.EachClaim(ctx, p.Client, func(c *resourceapi.ResourceClaim) {
		for _, r := range claim.Held(c, p.pool()) {
			names = append(names, r.Device)
		}
	})
	if err != nil {
		return nil, err
	}
	records, err := s.prepared()
	if err != nil {
		return nil, err
	}
	for _, r := range records {
		for _, g := range r.Grants {
			if !g.Admin {
				names = append(names, g.Device)
			}
		}
	}
	return names, nil
}
