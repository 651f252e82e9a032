// SPDX-License-Identifier: Apache-2.0

package explain

import (
	"context"

	resourceapi "k8s.io/api/resource/v1"

	"github.com/gpushare/dra-driver-gpushare/pkg/scheduling"
)

// combined says whether the scheduler's allocator could serve all requests of the
// claims, each of which could be served alone, on one node, if all cards were
// free. They are in use where that could be, and where it is not known.
func (c *Cluster) combined(ctx context.Context, m *meter, claims []*resourceapi.ResourceClaim,
	may scheduling.Where) finding {
	if trivial(claims) {
		return finding{}
	}
	ctx, cancel := context.WithTimeout(ctx, c.explainer.limits.Combined)
	defer cancel()
	groups, err := c.groupsFor(ctx, m, c.selectorsOf(claims))
	if err != nil {
		return finding{}
	}
	var fit []found
	for _, g := range groups {
		fits, err := c.fits(ctx, g, claims)
		if err != nil {
			return finding{}
		}
		if fits {
			fit = append(fit, found{group: g})
		}
	}
	if len(fit) == 0 {
		return finding{obstacle: apart, claims: claims}
	}
	if allowed, others := c.divide(fit, may); len(allowed) == 0 {
		return finding{obstacle: apartElsewhere, on: others}
	}
	return finding{}
}

// trivial says whether there is nothing that could stand in each other's way.
func trivial(claims []*resourceapi.ResourceClaim) bool {
	if len(claims) != 1 || len(claims[0].Spec.Devices.Constraints) > 0 || len(claims[0].Spec.Devices.Requests) != 1 {
		return false
	}
	for _, r := range scheduling.Served(&claims[0].Spec.Devices.Requests[0]) {
		if r.Count == 1 {
			return true
		}
	}
	return false
}

func (c *Cluster) selectorsOf(claims []*resourceapi.ResourceClaim) []string {
	var out []string
	for _, claim := range claims {
		for i := range claim.Spec.Devices.Requests {
			for _, r := range scheduling.Alternatives(&claim.Spec.Devices.Requests[i]) {
				out = append(out, r.Selectors...)
				if class := c.classes[r.Class]; class != nil {
					out = append(out, scheduling.Conditions(class.Spec.Selectors)...)
				}
			}
		}
	}
	return out
}

func (c *Cluster) fits(ctx context.Context, g group, claims []*resourceapi.ResourceClaim) (bool, error) {
	node := c.nodes[g.nodes[0]]
	allocator, err := c.explainer.engine.Allocator(ctx,
		scheduling.Snapshot{Slices: g.published(node.Name), Classes: c.published}, nil)
	if err != nil {
		return false, err
	}
	_, fits, err := allocator.Fit(ctx, node, claims, 0)
	return fits, err
}
