// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"context"
	"slices"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/utils/ptr"

	"github.com/gpushare/dra-driver-gpushare/pkg/scheduling"
)

// looked is where pods of a workload found room, and which nodes were given pods since.
type looked struct {
	room    scheduling.Room
	changed map[string]bool
}

// look asks where a pod finds room. For a further pod of a workload it asks of those nodes
// alone that were given pods: on the others there is as much as before.
func (s *simulation) look(ctx context.Context, situation scheduling.Snapshot, p *pending,
	claims []*resourceapi.ResourceClaim) (scheduling.Room, error) {
	// Devices of slices that name no node are of many: what one pod takes is gone on all.
	shared := slices.ContainsFunc(situation.Slices, func(of *resourceapi.ResourceSlice) bool {
		return ptr.Deref(of.Spec.NodeName, "") == ""
	})
	if shared || p.from.PerNode ||
		slices.ContainsFunc(claims, func(c *resourceapi.ResourceClaim) bool { return !p.own(c) }) {
		return s.in.engine.FindRoom(ctx, situation, p.pod, claims)
	}
	before := s.looked[p.from]
	if before == nil {
		room, err := s.in.engine.FindRoom(ctx, situation, p.pod, claims)
		if err == nil && room.Refused == nil {
			s.looked[p.from] = &looked{room, map[string]bool{}}
		}
		return room, err
	}
	situation.Nodes = slices.DeleteFunc(slices.Clone(situation.Nodes),
		func(n *corev1.Node) bool { return !before.changed[n.Name] })
	situation.Slices = slices.DeleteFunc(slices.Clone(situation.Slices), func(of *resourceapi.ResourceSlice) bool {
		return !before.changed[*of.Spec.NodeName]
	})
	room, err := s.in.engine.FindRoom(ctx, situation, p.pod, claims)
	if err != nil || room.Refused != nil {
		return room, err
	}
	for _, n := range room.Nodes {
		i := slices.IndexFunc(before.room.Nodes, func(was scheduling.NodeRoom) bool { return was.Name == n.Name })
		before.room.Nodes[i] = n
	}
	clear(before.changed)
	return before.room, nil
}

// own says whether a claim is for the pod alone.
func (p *pending) own(claim *resourceapi.ResourceClaim) bool {
	if scheduling.OfScheduler(claim) {
		return true
	}
	for _, own := range p.claims {
		if own == claim {
			return true
		}
	}
	return false
}
