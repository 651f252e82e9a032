// SPDX-License-Identifier: Apache-2.0

package explain

import (
	"context"
	"slices"

	resourceapi "k8s.io/api/resource/v1"

	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/scheduling"
)

// verdict is what a search for the devices of one request came to.
type verdict int

const (
	// busy: there are such devices, so it is others that use them.
	busy verdict = iota
	// blocked: something stands in the way that is no matter of how much is free.
	blocked
	// impossible: no node has as many or as large ones, whatever is free.
	impossible
	// unoffered: no node has any of the class, which is impossible, too.
	unoffered
)

// obstacle is what stands between a request and its devices.
type obstacle int

const (
	// inUse: there are such devices, so it is others that use them.
	inUse obstacle = iota
	// selectorFails: a selector cannot be evaluated for a device.
	selectorFails
	// elsewhere: the nodes with such devices are those that the pod cannot be on. closed: the
	// devices take no new claims.
	elsewhere
	closed
	// tooFew, tooSmall and unmatched: there are not as many, as large ones, or any that match.
	tooFew
	tooSmall
	unmatched
	// notOffered: there is none of the class.
	notOffered
	// apart: no node has all at once that each request finds alone. apartElsewhere: those that
	// have are those that the pod cannot be on.
	apart
	apartElsewhere
)

// verdict is what an obstacle comes to.
func (o obstacle) verdict() verdict {
	switch o {
	case inUse:
		return busy
	case selectorFails, elsewhere, closed, apartElsewhere:
		return blocked
	case notOffered:
		return unoffered
	default:
		return impossible
	}
}

// finding is what a search came to: say makes words of it.
type finding struct {
	obstacle
	request scheduling.Request
	// on are the nodes that it is about, and what they have for the request.
	on []found
	// claims are those that are looked at together.
	claims []*resourceapi.ResourceClaim
	// selector is the one after which no device is left, failed the one that cannot be
	// evaluated for a device of the node.
	selector string
	failed   *selectorError
	node     string
}

// found is what the nodes of a group have for a request.
type found struct {
	group
	// ofClass are the devices that the class selects, matching those that the
	// selectors of the request leave, roomy those that are large enough too.
	ofClass, matching, roomy []int
}

func ofClass(f found) []int  { return f.ofClass }
func matching(f found) []int { return f.matching }
func roomy(f found) []int    { return f.roomy }

// search looks for the devices of a request, whose class there is.
func (c *Cluster) search(ctx context.Context, m *meter, r scheduling.Request, may scheduling.Where) (
	finding, error) {
	classSelectors := scheduling.Conditions(c.classes[r.Class].Spec.Selectors)
	groups, err := c.groupsFor(ctx, m, slices.Concat(classSelectors, r.Selectors))
	if err != nil {
		return finding{}, err
	}
	var all []found
	for _, g := range groups {
		f := found{group: g}
		var failed *selectorError
		if f.ofClass, failed, err = g.choose(ctx, m, c.explainer.programs, g.all(), classSelectors); err == nil &&
			failed == nil {
			f.matching, failed, err = g.choose(ctx, m, c.explainer.programs, f.ofClass, r.Selectors)
		}
		if err != nil {
			return finding{}, err
		}
		// The scheduler does not come to look at nodes that the pod cannot be on.
		if node, reached := c.first(g, may); failed != nil && reached {
			return finding{obstacle: selectorFails, request: r, failed: failed, node: node}, nil
		}
		for _, i := range f.matching {
			if r.Short(&g.devices[i]) == "" {
				f.roomy = append(f.roomy, i)
			}
		}
		all = append(all, f)
	}
	return c.conclude(ctx, m, r, all, may)
}

// conclude goes from the reasons that hold for the whole cluster to those that are
// the pod's own and to those that pass.
func (c *Cluster) conclude(ctx context.Context, m *meter, r scheduling.Request, all []found,
	may scheduling.Where) (finding, error) {
	of := func(o obstacle, on []found) finding { return finding{obstacle: o, request: r, on: on} }
	switch {
	case count(all, ofClass) == 0:
		return of(notOffered, nil), nil
	case count(all, matching) == 0:
		f := of(unmatched, all)
		var err error
		f.selector, err = c.deciding(ctx, m, r, all)
		return f, err
	case count(all, roomy) == 0:
		return of(tooSmall, all), nil
	}
	enough := slices.DeleteFunc(slices.Clone(all), func(f found) bool { return cardsIn(f.kind, f.roomy) < r.Count })
	if len(enough) == 0 {
		return of(tooFew, all), nil
	}
	allowed, others := c.divide(enough, may)
	if len(allowed) == 0 {
		return of(elsewhere, others), nil
	}
	open, tainted := openOf(r, allowed)
	if len(open) == 0 {
		return of(closed, tainted), nil
	}
	return of(inUse, open), nil
}

// divide parts the nodes of groups into those that a pod can be on and others.
func (c *Cluster) divide(all []found, may scheduling.Where) (allowed, others []found) {
	for _, f := range all {
		in, out := f, f
		in.nodes, out.nodes = nil, nil
		for _, node := range f.nodes {
			if may(c.nodes[node]) {
				in.nodes = append(in.nodes, node)
			} else {
				out.nodes = append(out.nodes, node)
			}
		}
		if len(in.nodes) > 0 {
			allowed = append(allowed, in)
		}
		if len(out.nodes) > 0 {
			others = append(others, out)
		}
	}
	return allowed, others
}

// openOf returns the groups that have enough devices without taints, and of them
// these devices; tainted are the others, as they are.
func openOf(r scheduling.Request, all []found) (open, tainted []found) {
	for _, f := range all {
		untainted := f
		untainted.roomy = slices.DeleteFunc(slices.Clone(f.roomy), func(i int) bool {
			_, isClosed := r.Untolerated(&f.devices[i])
			return isClosed
		})
		if cardsIn(f.kind, untainted.roomy) >= r.Count {
			open = append(open, untainted)
		} else {
			tainted = append(tainted, f)
		}
	}
	return open, tainted
}

// first is the first node of a group that a pod can be on.
func (c *Cluster) first(g group, may scheduling.Where) (string, bool) {
	for _, node := range g.nodes {
		if may(c.nodes[node]) {
			return node, true
		}
	}
	return "", false
}

// deciding is the selector of a request after which no device is left.
func (c *Cluster) deciding(ctx context.Context, m *meter, r scheduling.Request, all []found) (string, error) {
	for n := range r.Selectors {
		left := false
		for _, f := range all {
			chosen, _, err := f.choose(ctx, m, c.explainer.programs, f.ofClass, r.Selectors[:n+1])
			if err != nil {
				return "", err
			}
			left = left || len(chosen) > 0
		}
		if !left {
			return r.Selectors[n], nil
		}
	}
	return "", nil
}

// count is the number of devices on all nodes.
func count(all []found, which func(found) []int) int64 {
	var sum int64
	for _, f := range all {
		sum += cardsIn(f.kind, which(f)) * int64(len(f.nodes))
	}
	return sum
}

// cardsIn counts devices; those that are the same card in several modes are one,
// as only one of them can be had.
func cardsIn(k *kind, devices []int) int64 {
	seen := map[int64]bool{}
	var n int64
	for _, i := range devices {
		index := k.devices[i].Attributes[v1alpha1.AttrIndex].IntValue
		if index == nil {
			n++
			continue
		}
		if !seen[*index] {
			seen[*index] = true
			n++
		}
	}
	return n
}
