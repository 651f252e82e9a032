// SPDX-License-Identifier: Apache-2.0

package explain

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/dynamic-resource-allocation/structured"

	"github.com/gpushare/dra-driver-gpushare/internal/stockallocator"
)

// FindRoomWith is FindRoom with another allocator; every node is open.
func FindRoomWith(ctx context.Context, s Situation, allocator structured.Allocator,
	claims []*resourceapi.ResourceClaim) (Room, error) {
	f := &Finder{nodes: s.Nodes, allocator: allocator,
		looker: newLooker(s, stockallocator.Nothing(), stockallocator.Expressions(compiledMost))}
	return f.Find(ctx, &corev1.Pod{}, claims)
}

// WordsFor are the lacks that would be told of a node, whatever the allocator says.
func WordsFor(ctx context.Context, s Situation, node string, claims []*resourceapi.ResourceClaim) []Lack {
	state := stockallocator.Nothing()
	for _, claim := range s.Claims {
		stockallocator.Hold(&state, claim.Status.Allocation.Devices.Results)
	}
	lacks, _, _ := newLooker(s, state, stockallocator.Expressions(compiledMost)).lacks(ctx, node, claims)
	return lacks
}
