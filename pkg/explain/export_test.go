// SPDX-License-Identifier: Apache-2.0

package explain

import (
	"context"

	resourceapi "k8s.io/api/resource/v1"

	"github.com/gpushare/dra-driver-gpushare/internal/stockallocator"
)

// WordsFor are the lacks that would be told of a node, whatever the allocator says.
func WordsFor(ctx context.Context, s Situation, node string, claims []*resourceapi.ResourceClaim) []Lack {
	state := stockallocator.Nothing()
	for _, claim := range s.Claims {
		stockallocator.Hold(&state, claim.Status.Allocation.Devices.Results)
	}
	lacks, _ := newLooker(s, state, stockallocator.Expressions(compiledMost)).lacks(ctx, node, claims)
	return lacks
}
