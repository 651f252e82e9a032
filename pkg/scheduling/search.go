// SPDX-License-Identifier: Apache-2.0

package scheduling

import (
	"context"
	"errors"
	"slices"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"

	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
)

// Found is what some nodes that are alike, its Nodes, have for a request.
type Found struct {
	group
	// OfClass are those of the Devices, by their indices, that the class selects, Matching those
	// that the selectors of the request leave, Roomy those that are large enough too.
	OfClass, Matching, Roomy []int
}

func ofClass(f Found) []int  { return f.OfClass }
func matching(f Found) []int { return f.Matching }
func roomy(f Found) []int    { return f.Roomy }

// Search looks for the devices of a request of a pod, which can be where may says; its class there is. What it returns
// is what all nodes lack: from Taken on, there are such devices, and others use them.
func (c *Survey) Search(ctx context.Context, m *Meter, r Request, pod *corev1.Pod, may Where) (Lack, error) {
	classSelectors := Conditions(c.classes[r.Class].Spec.Selectors)
	groups, err := c.groupsFor(ctx, m, slices.Concat(classSelectors, r.Selectors))
	if err != nil {
		return Lack{}, err
	}
	var all []Found
	var onClosed *SelectorError
	for _, g := range groups {
		f := Found{group: g}
		var failed *SelectorError
		if f.OfClass, failed, err = g.choose(ctx, m, c.surveyor.programs, g.all(), classSelectors); err == nil &&
			failed == nil {
			f.Matching, failed, err = g.choose(ctx, m, c.surveyor.programs, f.OfClass, r.Selectors)
		}
		if err != nil {
			return Lack{}, err
		}
		if failed != nil {
			// The scheduler does not come to look at nodes that the pod cannot be on.
			on := slices.DeleteFunc(slices.Clone(g.Nodes), func(node string) bool { return !may(c.nodes[node]) })
			if i := slices.IndexFunc(on, func(node string) bool { return c.takes(ctx, node, pod, may) }); i >= 0 {
				return Lack{Kind: SelectorFails, Step: Excluded, Wanted: r, Failed: failed, Node: on[i]}, nil
			}
			if len(on) > 0 {
				onClosed = failed
			}
		}
		for _, i := range f.Matching {
			if r.Short(&g.Devices[i]) == "" {
				f.Roomy = append(f.Roomy, i)
			}
		}
		all = append(all, f)
	}
	f, err := c.conclude(ctx, m, r, all, may)
	f.Failed = onClosed
	return f, err
}

// takes reports whether a node takes a pod now.
func (c *Survey) takes(ctx context.Context, name string, pod *corev1.Pod, may Where) bool {
	node := *c.nodes[name]
	node.Spec = c.closed(name)
	return ClosedTo(ctx, &node, pod, may).By == Open
}

// conclude goes from the reasons that hold for the whole cluster to those that are
// the pod's own and to those that pass.
func (c *Survey) conclude(ctx context.Context, m *Meter, r Request, all []Found,
	may Where) (Lack, error) {
	of := func(step Step, on []Found) Lack { return Lack{Step: step, Wanted: r, On: on} }
	switch {
	case Count(all, ofClass) == 0:
		return of(OtherClass, nil), nil
	case Count(all, matching) == 0:
		f := of(Unmatched, all)
		var err error
		f.Selector, err = c.deciding(ctx, m, r, all)
		return f, err
	case Count(all, roomy) == 0:
		return of(TooSmall, all), nil
	}
	enough := slices.DeleteFunc(slices.Clone(all), func(f Found) bool { return f.GPUs(f.Roomy) < r.Count })
	if len(enough) == 0 {
		return of(TooFew, all), nil
	}
	allowed, others := c.divide(enough, may)
	if len(allowed) == 0 {
		return of(Excluded, others), nil
	}
	open, tainted := openOf(r, allowed)
	if len(open) == 0 {
		return of(Tainted, tainted), nil
	}
	return of(Taken, open), nil
}

// divide parts the nodes of groups into those that a pod can be on and others.
func (c *Survey) divide(all []Found, may Where) (allowed, others []Found) {
	for _, f := range all {
		in, out := f, f
		in.Nodes, out.Nodes = nil, nil
		for _, node := range f.Nodes {
			if may(c.nodes[node]) {
				in.Nodes = append(in.Nodes, node)
			} else {
				out.Nodes = append(out.Nodes, node)
			}
		}
		if len(in.Nodes) > 0 {
			allowed = append(allowed, in)
		}
		if len(out.Nodes) > 0 {
			others = append(others, out)
		}
	}
	return allowed, others
}

// openOf returns the groups that have enough devices without taints, and of them
// these devices; tainted are the others, as they are.
func openOf(r Request, all []Found) (open, tainted []Found) {
	for _, f := range all {
		untainted, lacks := f, false
		untainted.Roomy = slices.DeleteFunc(slices.Clone(f.Roomy), func(i int) bool {
			_, isClosed := r.Untolerated(&f.Devices[i])
			lacks = lacks || isClosed && r.All && r.means(f.offered[i])
			return isClosed
		})
		if f.GPUs(untainted.Roomy) >= r.Count && !lacks {
			open = append(open, untainted)
		} else {
			tainted = append(tainted, f)
		}
	}
	return open, tainted
}

// deciding is the selector of a request after which no device is left.
func (c *Survey) deciding(ctx context.Context, m *Meter, r Request, all []Found) (string, error) {
	for n := range r.Selectors {
		left := false
		for _, f := range all {
			chosen, _, err := f.choose(ctx, m, c.surveyor.programs, f.OfClass, r.Selectors[:n+1])
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

// Count is the number of devices on all nodes.
func Count(all []Found, which func(Found) []int) int64 {
	var sum int64
	for _, f := range all {
		sum += f.GPUs(which(f)) * int64(len(f.Nodes))
	}
	return sum
}

// GPUs counts devices; those that are the same GPU in several modes are one,
// as only one of them can be had. MIG instances of a GPU are as many as they are.
func (k *kind) GPUs(devices []int) int64 {
	seen := map[int64]bool{}
	var n int64
	for _, i := range devices {
		index := k.Devices[i].Attributes[v1alpha1.AttrIndex].IntValue
		if index == nil || IsInstance(&k.Devices[i]) {
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

// Together finds out whether the scheduler's allocator could serve all requests of the claims, each of
// which could be served alone, on one node, if all GPUs were free. They are Taken where that could
// be, and where it is not found out within the effort, which is Unsearched.
func (c *Survey) Together(ctx context.Context, m *Meter, claims []*resourceapi.ResourceClaim,
	may Where, effort *Effort) Lack {
	inUse := Lack{Kind: AtOnce, Step: Taken, Claims: claims}
	if trivial(claims) {
		return inUse
	}
	groups, err := c.groupsFor(ctx, m, c.selectorsOf(claims))
	if err != nil {
		return inUse
	}
	var fit []Found
	unsearched := false
	for _, g := range groups {
		node := c.nodes[g.Nodes[0]]
		allocator, err := c.surveyor.engine.Allocator(ctx,
			Snapshot{Slices: g.published(node.Name), Classes: c.published}, nil)
		if err != nil {
			return inUse
		}
		_, fits, err := allocator.Fit(ctx, node, claims, effort)
		switch {
		case errors.Is(err, ErrUnsearched):
			unsearched = true
		case err != nil:
			return inUse
		case fits:
			fit = append(fit, Found{group: g})
		}
	}
	allowed, others := c.divide(fit, may)
	switch {
	case len(allowed) > 0:
		return inUse
	case unsearched:
		return Lack{Kind: Unsearched, Step: Taken, Claims: claims}
	case len(fit) == 0:
		return Lack{Kind: AtOnce, Step: TooFew, Claims: claims}
	default:
		return Lack{Kind: AtOnce, Step: Excluded, Claims: claims, On: others}
	}
}

func (c *Survey) selectorsOf(claims []*resourceapi.ResourceClaim) []string {
	var out []string
	for _, claim := range claims {
		for i := range claim.Spec.Devices.Requests {
			for _, r := range Alternatives(&claim.Spec.Devices.Requests[i]) {
				out = append(out, r.Selectors...)
				if class := c.classes[r.Class]; class != nil {
					out = append(out, Conditions(class.Spec.Selectors)...)
				}
			}
		}
	}
	return out
}
