// SPDX-License-Identifier: Apache-2.0

package prepare

import (
	"context"
	"errors"
	"slices"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/utils/ptr"

	"github.com/gpushare/dra-driver-gpushare/cdi"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/claim"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/isolation"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/state"
	"github.com/gpushare/dra-driver-gpushare/pkg/usage"
)

func (p *Preparer) locked(ctx context.Context, uid types.UID, do func() error) error {
	unlock, err := p.options.Store.LockClaim(ctx, uid)
	if err != nil {
		return err
	}
	defer unlock()
	return do()
}

// Prepared returns the records of all claims, ordered by UID.
func (p *Preparer) Prepared(ctx context.Context) ([]state.Record, error) {
	records, err := p.options.Store.List()
	return records, p.reportDamaged(ctx, err)
}

// Recent is Prepared for those who look every few seconds: see state.Store.Recent.
func (p *Preparer) Recent(ctx context.Context) ([]state.Record, error) {
	records, err := p.options.Store.Recent()
	return records, p.reportDamaged(ctx, err)
}

// WithNodeLocked calls do with the records of all claims, ordered by UID. Until it
// returns no claim is entered among them, by this process or another one.
func (p *Preparer) WithNodeLocked(ctx context.Context, do func(prepared []state.Record) error) error {
	unlock, err := p.options.Store.LockNode(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	records, err := p.Prepared(ctx)
	if err != nil {
		return err
	}
	return do(records)
}

// get is Store.Get with damaged records reported and counted as absent.
func (p *Preparer) get(ctx context.Context, uid types.UID) (state.Record, bool, error) {
	r, found, err := p.options.Store.Get(uid)
	return r, found, p.reportDamaged(ctx, err)
}

// reportDamaged tells the Listener of the Damaged errors in err and returns the
// rest.
func (p *Preparer) reportDamaged(ctx context.Context, err error) error {
	var rest []error
	for _, e := range flatten(err) {
		var damaged state.Damaged
		if errors.As(e, &damaged) {
			p.options.Listener.RecordDamaged(ctx, damaged)
		} else {
			rest = append(rest, e)
		}
	}
	return errors.Join(rest...)
}

func flatten(err error) []error {
	if err == nil {
		return nil
	}
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		return joined.Unwrap()
	}
	return []error{err}
}

// recordOf is the record of a claim.
func (p *Preparer) recordOf(
	c *resourceapi.ResourceClaim, phase state.Phase, grants []claim.Grant, order []string,
) state.Record {
	return state.Record{
		Phase: phase, UID: c.UID, Namespace: c.Namespace, Name: c.Name, BootID: p.options.BootID, Pods: PodsOf(c),
		PodNames: podNames(c), PodClaimName: podClaimName(c), Grants: grants,
		Order: order, CDISpec: cdi.SpecName(c.UID),
	}
}

// PodsOf are the pods that the claim is reserved for, in order.
func PodsOf(c *resourceapi.ResourceClaim) []types.UID {
	var uids []types.UID
	pods, _ := claim.Pods(c)
	for _, pod := range pods {
		uids = append(uids, pod.UID)
	}
	slices.Sort(uids)
	return slices.Compact(uids)
}

// podNames are the names of the pods that the claim is reserved for, in order.
func podNames(c *resourceapi.ResourceClaim) []string {
	var names []string
	pods, _ := claim.Pods(c)
	for _, pod := range pods {
		names = append(names, pod.Name)
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// effects are those of what isolates a claim, as records have them.
func effects(isolated isolation.Claim) []state.Effect {
	var out []state.Effect
	for _, e := range isolated.Effects() {
		out = append(out, state.Effect{Name: e.Name, GPU: e.GPU})
	}
	return out
}

// podClaimName is the name that a claim has in the pod that it was made for. Whoever writes
// claims can write anything into the annotation, and of any length; names of pods' claims
// are DNS labels.
func podClaimName(c *resourceapi.ResourceClaim) string {
	name := c.Annotations[resourceapi.PodResourceClaimAnnotation]
	if len(validation.IsDNS1123Label(name)) > 0 {
		return ""
	}
	return name
}

// claimsOf are what the records' claims were granted, but for one of them.
func claimsOf(records []state.Record, but types.UID) []usage.Claim {
	var claims []usage.Claim
	for _, r := range records {
		if r.UID != but {
			claims = append(claims, r.Usage())
		}
	}
	return claims
}

// claimsBeside are those of the claims that were granted some of the grants' GPUs.
func claimsBeside(others []usage.Claim, grants []claim.Grant) []types.UID {
	var uids []types.UID
	for _, other := range others {
		if slices.ContainsFunc(other.Grants, func(granted claim.Grant) bool {
			return slices.ContainsFunc(grants, func(g claim.Grant) bool { return g.Card.Key() == granted.Card.Key() })
		}) {
			uids = append(uids, other.UID)
		}
	}
	return uids
}

// SameAllocation says whether the record stands for what the claim is
// allocated now. A claim that outlives its pods can be allocated anew.
func SameAllocation(r state.Record, c *resourceapi.ResourceClaim) bool {
	if c.Status.Allocation == nil {
		return false
	}
	results := claim.Results(r.Grants)
	i := 0
	for _, result := range c.Status.Allocation.Devices.Results {
		if result.Driver != v1alpha1.DriverName {
			continue
		}
		if i == len(results) {
			return false
		}
		g := results[i][0]
		if g.Request != result.Request || g.Device != result.Device || g.Pool != result.Pool ||
			g.ShareID != ptr.Deref(result.ShareID, "") {
			return false
		}
		i++
	}
	return i == len(results)
}

// strayRecord stands for a claim of which no record is left: the name of its
// spec follows from its UID.
func strayRecord(uid types.UID) state.Record {
	return state.Record{UID: uid, CDISpec: cdi.SpecName(uid)}
}
