// SPDX-License-Identifier: Apache-2.0

package scheduling

import (
	"context"
	"time"

	resourceapi "k8s.io/api/resource/v1"
)

// Together says whether the scheduler's allocator could serve all requests of the claims, each of
// which could be served alone, on one node, if all GPUs were free. They are in use where that could
// be, and where it is not found out within most.
func (c *Survey) Together(ctx context.Context, m *Meter, claims []*resourceapi.ResourceClaim,
	may Where, most time.Duration) Finding {
	if trivial(claims) {
		return Finding{}
	}
	ctx, cancel := context.WithTimeout(ctx, most)
	defer cancel()
	groups, err := c.groupsFor(ctx, m, c.selectorsOf(claims))
	if err != nil {
		return Finding{}
	}
	var fit []Found
	for _, g := range groups {
		fits, err := c.fits(ctx, g, claims)
		if err != nil {
			return Finding{}
		}
		if fits {
			fit = append(fit, Found{group: g})
		}
	}
	if len(fit) == 0 {
		return Finding{Obstacle: Apart, Claims: claims}
	}
	if allowed, others := c.divide(fit, may); len(allowed) == 0 {
		return Finding{Obstacle: ApartElsewhere, On: others}
	}
	return Finding{}
}

// trivial says whether there is nothing that could stand in each other's way.
func trivial(claims []*resourceapi.ResourceClaim) bool {
	if len(claims) != 1 || len(claims[0].Spec.Devices.Constraints) > 0 || len(claims[0].Spec.Devices.Requests) != 1 {
		return false
	}
	for _, r := range Served(&claims[0].Spec.Devices.Requests[0]) {
		if r.Count == 1 {
			return true
		}
	}
	return false
}

func (c *Survey) selectorsOf(claims []*resourceapi.ResourceClaim) []string {
	var out []string
	for _, claim := range claims {
		for i := range claim.Spec.Devices.Requests {
			for _, r := range Alternatives(&claim.Spec.Devices.Requests[i]) {
				out = append(out, r.Selectors...)
				if class := c.classes[r.Class]; class != nil {
					out = append(out, conditions(class.Spec.Selectors)...)
				}
			}
		}
	}
	return out
}

func (c *Survey) fits(ctx context.Context, g group, claims []*resourceapi.ResourceClaim) (bool, error) {
	node := c.nodes[g.Nodes[0]]
	allocator, err := c.surveyor.engine.Allocator(ctx,
		Snapshot{Slices: g.published(node.Name), Classes: c.published}, nil)
	if err != nil {
		return false, err
	}
	_, fits, err := allocator.Fit(ctx, node, claims, 0)
	return fits, err
}
