package prepare

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"

	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/claim"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
	"github.com/gpushare/dra-driver-gpushare/pkg/isolation"
	"github.com/gpushare/dra-driver-gpushare/pkg/mode"
)

// grants are the claim's grants, with all decided that a later preparation of
// the same claim has to repeat: by what they are isolated, for whom they are, and
// whether they are limited at all.
func (p *Preparer) grants(ctx context.Context, inv *Inventory, c *resourceapi.ResourceClaim) ([]claim.Grant, error) {
	grants, err := p.isolated(ctx, inv, c)
	if err != nil || !capped(grants) {
		return grants, err
	}
	pods, err := p.Cluster.Pods(ctx, c)
	if err != nil {
		return nil, fmt.Errorf("find out which containers use the claim, and whether its limits are lifted: %w", err)
	}
	kept, err := p.use(grants, c, pods...)
	if err != nil {
		return nil, err
	}
	if len(kept) > 0 {
		p.Listener.LimitsKept(c, kept)
	}
	return grants, p.checkTogether(ctx, inv, c, grants, pods)
}

// capped says whether a mode of the grants has limits.
func capped(grants []claim.Grant) bool {
	return slices.ContainsFunc(grants, func(g claim.Grant) bool { return isolation.Capped(g.Mode) })
}

// isolated are the claim's grants, if the node still serves them, with what isolates them.
func (p *Preparer) isolated(ctx context.Context, inv *Inventory, c *resourceapi.ResourceClaim) ([]claim.Grant, error) {
	grants, err := claim.Grants(c, p.Pool, inv.card)
	if err != nil {
		return nil, err
	}
	published := p.Node.Published(ctx)
	if err := served(published, grants); err != nil {
		return nil, err
	}
	for i := range grants {
		backend, err := Backend(p.Isolation, published.Isolation[grants[i].Mode], grants[i].Mode)
		if err != nil {
			return nil, err
		}
		grants[i].Isolation = backend.Name()
	}
	return grants, nil
}

// use has the grants go by what the pods' containers make of the claim. It returns the
// requests whose limits claim or containers would lift, and may not.
func (p *Preparer) use(grants []claim.Grant, c *resourceapi.ResourceClaim, pods ...*corev1.Pod) (kept []string, err error) {
	var containers []claim.PodContainer
	for _, pod := range pods {
		containers = append(containers, claim.Containers(pod)...)
	}
	claim.Join(grants, c.Name, containers)
	if p.isolationDisabled.Load() {
		for i := range grants {
			grants[i].Config = grants[i].Config.Merge(v1alpha1.WithoutIsolation())
		}
		return nil, nil
	}
	if kept, err = p.Lifters.Keep(c, grants, containers); err != nil {
		return nil, err
	}
	if !p.Lifters.Anyone() {
		containers = nil
	}
	claim.Lift(grants, c.Name, containers)
	return kept, nil
}

// served reports grants that a node which publishes this cannot honour: the
// scheduler allocated them from what the node offered before, and does not count
// them against what it offers now. Grants for administrators hold nothing, so they
// stay good.
func served(published mode.Offer, grants []claim.Grant) error {
	for _, g := range grants {
		isolation := published.Isolation[g.Mode]
		switch {
		case g.Admin:
		case published.Mode.Serves(g.Mode) && g.Isolation != "" && isolation != "" && g.Isolation != isolation:
			return fmt.Errorf("request %q: what isolates the shares of the node's cards changed from %s to %s at this moment: the kubelet tries again by itself", g.Request, g.Isolation, isolation)
		case published.Mode.Serves(g.Mode):
		case published.Mode == "":
			return fmt.Errorf("request %q was allocated device %q, but the node offers no GPUs now: the node's Events say why; delete the pod to have it placed again", g.Request, g.Device)
		default:
			return fmt.Errorf("request %q was allocated device %q of mode %s, but the node has changed to mode %s since: delete the pod to have it placed again", g.Request, g.Device, g.Mode, published.Mode)
		}
	}
	return nil
}

// liftedRequests names the requests that would have limits but for their
// configuration.
func liftedRequests(grants []claim.Grant) []string {
	var requests []string
	for _, g := range grants {
		if isolation.Capped(g.Mode) && g.Config.IsolationDisabled() && !slices.Contains(requests, g.Request) {
			requests = append(requests, g.Request)
		}
	}
	return requests
}

// check reports why a container that starts with the grants now would lack
// something: a device node, or what is to hold it to its share.
func (p *Preparer) check(inv *Inventory, grants []claim.Grant) error {
	for _, g := range grants {
		if err := inv.Base.Check(g.Card.UUID); err != nil {
			return fmt.Errorf("card %d: %w", g.Card.Index, err)
		}
		backend, err := p.backend(g)
		if err != nil {
			return err
		}
		if g.Admin || g.Config.IsolationDisabled() {
			continue
		}
		if err := backend.Check(g.Card.UUID); err != nil {
			return fmt.Errorf("card %d: its share could not be limited by %s: %w", g.Card.Index, backend.Name(), err)
		}
	}
	return p.validate(grants)
}

// validate reports who could not be held to all that the claim was granted for it.
func (p *Preparer) validate(grants []claim.Grant) error {
	for _, own := range byUser(grants) {
		if own[0].Admin {
			continue
		}
		backend, err := p.backend(own[0])
		if err != nil {
			return err
		}
		if err := backend.Validate(own); err != nil {
			return fmt.Errorf("request %q: %w", own[0].Request, err)
		}
	}
	return nil
}

// byUser groups grants by whom they are for, in their order.
func byUser(grants []claim.Grant) [][]claim.Grant {
	var out [][]claim.Grant
	for _, g := range grants {
		i := slices.IndexFunc(out, func(own []claim.Grant) bool { return own[0].SameUser(g) })
		if i < 0 {
			i = len(out)
			out = append(out, nil)
		}
		out[i] = append(out[i], g)
	}
	return out
}

// Startable reports why no container could start with any of the node's cards now, as
// where the device nodes are looked for in the wrong place; nil if one could, or if
// there are no cards.
func (p *Preparer) Startable() error {
	inv := p.inventory.Load()
	if inv == nil {
		return nil
	}
	var first error
	for _, g := range inv.Machine.GPUs {
		err := inv.Base.Check(g.UUID)
		if err == nil {
			return nil
		}
		if first == nil {
			first = err
		}
	}
	return first
}

// backend is the back end that the grant was prepared with. Records of older
// versions do not name it.
func (p *Preparer) backend(g claim.Grant) (isolation.Backend, error) {
	return Backend(p.Isolation, g.Isolation, g.Mode)
}

func (p *Preparer) maxShares(g claim.Grant) (int64, error) {
	backend, err := p.backend(g)
	if err != nil {
		return 0, err
	}
	return backend.MaxShares(), nil
}

// Backend is the back end of that name or, where it is empty, the one that serves
// the mode.
func Backend(backends Isolation, name string, m mode.Mode) (isolation.Backend, error) {
	if name == "" {
		return backends.For(m)
	}
	return backends.ByName(name)
}

func (inv *Inventory) card(index int) (gpu.GPU, bool) {
	for _, g := range inv.Machine.GPUs {
		if g.Index == index {
			return g, true
		}
	}
	return gpu.GPU{}, false
}
