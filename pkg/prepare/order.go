package prepare

import (
	"context"
	"fmt"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"
	resourceapi "k8s.io/api/resource/v1"

	"github.com/gpushare/dra-driver-gpushare/pkg/claim"
	"github.com/gpushare/dra-driver-gpushare/pkg/mode"
	"github.com/gpushare/dra-driver-gpushare/pkg/topology"
)

// order is the order in which containers see the cards, by UUID, where the
// driver sets it: for one request of several whole cards in mode topology. With
// a second request a container may have the cards of one or of both, and a
// variable that names cards which it does not have hides others.
func (p *Preparer) order(ctx context.Context, inv *Inventory, c *resourceapi.ResourceClaim, grants []claim.Grant) ([]string, error) {
	first := grants[0]
	other := slices.ContainsFunc(grants, func(g claim.Grant) bool { return g.Request != first.Request })
	if len(grants) < 2 || other || first.Mode != mode.Topology || first.Admin || !first.Config.LegacyEnv() {
		return nil, nil
	}
	if sets, err := p.setsOrder(ctx, c); err != nil || !sets {
		return nil, err
	}
	uuids := map[int]string{}
	var indices []int
	for _, g := range grants {
		uuids[g.Card.Index] = g.Card.UUID
		indices = append(indices, g.Card.Index)
	}
	var order []string
	for _, index := range topology.Order(inv.Machine, indices) {
		order = append(order, uuids[index])
	}
	return order, nil
}

// setsOrder says whether the containers that use the claim get their cards from it alone
// and leave their order to the driver.
func (p *Preparer) setsOrder(ctx context.Context, c *resourceapi.ResourceClaim) (bool, error) {
	pods, err := p.Cluster.Pods(ctx, c)
	if err != nil {
		return false, fmt.Errorf("find out whether the pod sets the order of its cards itself: %w", err)
	}
	var beside []string
	for _, pod := range pods {
		leaves, others := claim.LeavesOrder(pod, c.Name)
		if !leaves {
			return false, nil
		}
		beside = append(beside, others...)
	}
	for name, read := range p.readClaims(ctx, c.Namespace, beside) {
		if read.err != nil {
			return false, fmt.Errorf("read claim %s/%s, whose cards a pod sees beside those of claim %s: %w", c.Namespace, name, c.Name, read.err)
		}
		if claim.BringsCards(read.claim) {
			return false, nil
		}
	}
	return true, nil
}

const (
	// readsAtOnce is how many claims are read side by side: a claim has up to 256 users,
	// with claims of their own, and one after the other they would take longer than the
	// kubelet waits.
	readsAtOnce = 16
	// readsLimit leaves the kubelet, which waits 45 s, the time to be told why.
	readsLimit = 30 * time.Second
)

// readClaim is a claim, or why it cannot be read.
type readClaim struct {
	claim *resourceapi.ResourceClaim
	err   error
}

// readClaims reads the claims of these names, each once.
func (p *Preparer) readClaims(ctx context.Context, namespace string, names []string) map[string]readClaim {
	names = slices.Compact(slices.Sorted(slices.Values(names)))
	ctx, cancel := context.WithTimeout(ctx, readsLimit)
	defer cancel()
	read := make([]readClaim, len(names))
	var group errgroup.Group
	group.SetLimit(readsAtOnce)
	for i, name := range names {
		group.Go(func() error {
			read[i].claim, read[i].err = p.Cluster.Claim(ctx, namespace, name)
			return nil
		})
	}
	_ = group.Wait()
	byName := make(map[string]readClaim, len(names))
	for i, name := range names {
		byName[name] = read[i]
	}
	return byName
}
