// SPDX-License-Identifier: Apache-2.0

package prepare

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/utils/ptr"

	"github.com/gpushare/dra-driver-gpushare/cdi"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/claim"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/isolation"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/state"
	"github.com/gpushare/dra-driver-gpushare/pkg/usage"
)

// locked calls do with the claim's record, as it is while the claim is locked.
func (p *Preparer) locked(ctx context.Context, uid types.UID, do func(r state.Record, found bool) error) error {
	unlock, err := p.options.Store.LockClaim(ctx, uid)
	if err != nil {
		return err
	}
	defer unlock()
	r, found, err := p.get(ctx, uid)
	if err != nil {
		return err
	}
	return do(r, found)
}

// Prepared returns the records of all claims, ordered by UID.
func (p *Preparer) Prepared(ctx context.Context) ([]state.Record, error) {
	records, err := p.options.Store.List()
	return p.asReleased(records...), p.reportDamaged(ctx, err)
}

// Recent is Prepared for those who look every few seconds: see state.Store.Recent.
func (p *Preparer) Recent(ctx context.Context) ([]state.Record, error) {
	records, err := p.options.Store.Recent()
	return p.asReleased(records...), p.reportDamaged(ctx, err)
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
	return p.asReleased(r)[0], found, p.reportDamaged(ctx, err)
}

// reportDamaged tells the Listener of the Damaged errors in err and returns the
// rest.
func (p *Preparer) reportDamaged(ctx context.Context, err error) error {
	all, rest := []error{err}, []error(nil)
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		all = joined.Unwrap()
	}
	for _, e := range all {
		var damaged state.Damaged
		if errors.As(e, &damaged) {
			p.options.Listener.RecordDamaged(ctx, damaged)
		} else {
			rest = append(rest, e)
		}
	}
	return errors.Join(rest...)
}

const (
	// completeLimit is how long a claim waits until it is known what was prepared: one
	// that is refused is not tried again by the kubelet for ten seconds and more.
	completeLimit   = 5 * time.Second
	completePolling = 20 * time.Millisecond
)

// errIncomplete says that a claim could be given what another one has.
var errIncomplete = errors.New("the plugin's record of prepared claims was lost and is being rebuilt from the API " +
	"server's claims: the kubelet tries again by itself; if this stays, see the node's Events")

// waitKnown waits a moment for as long as check says that what is prepared is not known. Mostly it is.
func waitKnown(ctx context.Context, check func() error) error {
	last := check()
	if errors.Is(last, errIncomplete) {
		_ = wait.PollUntilContextTimeout(ctx, completePolling, completeLimit, false, func(context.Context) (bool, error) {
			last = check()
			return !errors.Is(last, errIncomplete), nil
		})
	}
	return last
}

// Complete reports whether every claim that is prepared has its record, or had one that was set
// aside: see Known.
func (p *Preparer) Complete() (bool, error) { return p.options.Store.Complete() }

func (p *Preparer) checkComplete() error {
	complete, err := p.options.Store.Complete()
	if err == nil && !complete {
		err = errIncomplete
	}
	return err
}

// straySpecs are the claims that have a spec and no record.
func (p *Preparer) straySpecs(ctx context.Context) ([]types.UID, error) {
	uids, err := p.options.Specs.Claims()
	if err != nil {
		return nil, err
	}
	records, err := p.Prepared(ctx)
	if err != nil {
		return nil, err
	}
	return without(uids, records), nil
}

// without are the claims of which there is no record.
func without(uids []types.UID, records []state.Record) []types.UID {
	return slices.DeleteFunc(uids, func(uid types.UID) bool {
		return slices.ContainsFunc(records, func(r state.Record) bool { return r.UID == uid })
	})
}

// knownBeside reports that a claim may be prepared that is not among the records, but for the
// one that is asked for: what is granted of the GPUs is not known then. Claims that Repair
// could not enter do not count: one with a GPU that is gone must not keep all others away.
func (p *Preparer) knownBeside(records []state.Record, but types.UID) error {
	if err := p.checkComplete(); err != nil {
		return err
	}
	uids, err := p.options.Specs.Claims()
	if err != nil {
		return err
	}
	var tried []types.UID
	if unenterable := p.unenterable.Load(); unenterable != nil {
		tried = *unenterable
	}
	for _, uid := range without(uids, records) {
		if uid != but && !slices.Contains(tried, uid) {
			return fmt.Errorf("claim %s has a CDI spec and no record: %w", uid, errIncomplete)
		}
	}
	return nil
}

// Known reports why claims may be prepared that are not among the records, nil if none are:
// the records were lost, or one was set aside, and are not entered again yet. What was listed
// before is all there is then.
func (p *Preparer) Known(ctx context.Context) error {
	if err := p.checkComplete(); err != nil {
		return err
	}
	strays, err := p.straySpecs(ctx)
	if err != nil {
		return err
	}
	for _, uid := range strays {
		// A claim that was unprepared just now has no spec any more.
		if there, err := p.options.Specs.Exists(cdi.SpecName(uid)); err != nil || there {
			return errors.Join(fmt.Errorf("claim %s has a CDI spec and no record: %w", uid, errIncomplete), err)
		}
	}
	return nil
}

// recordOf is the record of a claim.
func (p *Preparer) recordOf(c *resourceapi.ResourceClaim, phase state.Phase, grants []claim.Grant) state.Record {
	r := state.Record{Phase: phase, UID: c.UID, Namespace: c.Namespace, Name: c.Name, BootID: p.options.BootID,
		Pods: podsOf(c), Grants: grants, CDISpec: cdi.SpecName(c.UID)}
	pods, _ := claim.Pods(c)
	for _, pod := range pods {
		r.PodNames = append(r.PodNames, pod.Name)
	}
	slices.Sort(r.PodNames)
	r.PodNames = slices.Compact(r.PodNames)
	// Whoever writes claims can write anything into the annotation, and of any length; names of pods' claims are DNS
	// labels.
	if name := c.Annotations[resourceapi.PodResourceClaimAnnotation]; len(validation.IsDNS1123Label(name)) == 0 {
		r.PodClaimName = name
	}
	return r
}

// podsOf are the pods that the claim is reserved for, in order.
func podsOf(c *resourceapi.ResourceClaim) []types.UID {
	var uids []types.UID
	pods, _ := claim.Pods(c)
	for _, pod := range pods {
		uids = append(uids, pod.UID)
	}
	slices.Sort(uids)
	return slices.Compact(uids)
}

// effects are those of what isolates a claim, as records have them.
func effects(isolated isolation.Claim) []state.Effect {
	var out []state.Effect
	for _, e := range isolated.Effects() {
		out = append(out, state.Effect{Name: e.Name, GPU: e.GPU})
	}
	return out
}

// othersOf are the records' claims, but for one.
func othersOf(records []state.Record, but types.UID) []usage.Claim {
	var others []usage.Claim
	for _, r := range records {
		if r.UID != but {
			others = append(others, r.Usage())
		}
	}
	return others
}

// claimsBeside are those of the claims that were granted something of the grants' GPUs: a MIG instance may be in the
// way of another one, and of the whole GPU.
func claimsBeside(others []usage.Claim, grants []claim.Grant) []types.UID {
	var uids []types.UID
	for _, other := range others {
		if slices.ContainsFunc(other.Grants, func(granted claim.Grant) bool {
			return slices.ContainsFunc(grants, func(g claim.Grant) bool { return g.GPU.Parent() == granted.GPU.Parent() })
		}) {
			uids = append(uids, other.UID)
		}
	}
	return uids
}

// SameAllocation reports whether the record stands for what the claim is
// allocated now. A claim that outlives its pods can be allocated again.
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

// IsOwn reports whether the record is of this node's devices. A disk that was copied from another node has records of
// that one's.
func (p *Preparer) IsOwn(r state.Record) bool {
	return slices.ContainsFunc(r.Grants, func(g claim.Grant) bool { return g.Pool == p.options.Pool })
}

// strayRecord stands for a claim of which no record is left: the name of its
// spec follows from its UID, which stands for its name.
func strayRecord(uid types.UID) state.Record {
	return state.Record{UID: uid, Name: string(uid), CDISpec: cdi.SpecName(uid)}
}
