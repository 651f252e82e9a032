// Package prepare makes the devices of a claim usable on the node and takes
// them back. It is a state machine: intent before effect,
// effect before done, so that a kill between any two steps leaves, after
// Recover, either a prepared claim or no trace of one.
package prepare

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"
	"k8s.io/klog/v2"
	"k8s.io/utils/ptr"

	"github.com/gpushare/dra-driver-gpushare/cdi"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/claim"
	"github.com/gpushare/dra-driver-gpushare/pkg/state"
	"github.com/gpushare/dra-driver-gpushare/pkg/usage"
)

// Preparer prepares and unprepares claims. Its methods may be called
// concurrently, also from several processes that share the state directory.
type Preparer struct {
	Options
	inventory         atomic.Pointer[Inventory]
	isolationDisabled atomic.Bool
}

// New returns a Preparer that refuses claims until SetInventory is called.
func New(o Options) *Preparer { return &Preparer{Options: o} }

// SetInventory replaces what the node has to hand out.
func (p *Preparer) SetInventory(inv *Inventory) { p.inventory.Store(inv) }

// SetIsolationDisabled sets whether the limits of everything that is prepared
// from now on are lifted, as if each request asked for it.
func (p *Preparer) SetIsolationDisabled(disabled bool) { p.isolationDisabled.Store(disabled) }

var errNoInventory = errors.New("the cards of this node have not been read yet, or there are none: see the node's Events")

var errDraining = errors.New("the node waits to change its mode and takes no further claims, whatever they tolerate: it is tried again until the mode has changed; delete the pod to have it placed again")

// Prepare makes the claim's devices usable and returns their CDI ids. It is
// idempotent. An error says what is wrong in words for the pod's owner: the
// kubelet shows it in the pod's Events.
func (p *Preparer) Prepare(ctx context.Context, c *resourceapi.ResourceClaim) ([]kubeletplugin.Device, error) {
	inv := p.inventory.Load()
	if inv == nil {
		return nil, errNoInventory
	}
	if err := p.waitComplete(ctx); err != nil {
		return nil, err
	}
	unlock, err := p.Store.LockClaim(ctx, c.UID)
	if err != nil {
		return nil, err
	}
	defer unlock()

	existing, found, err := p.get(ctx, c.UID)
	if err != nil {
		return nil, err
	}
	if found && existing.Phase == state.Prepared && SameAllocation(existing, c) {
		return p.prepareAgain(inv, existing, c)
	}
	if found {
		if err := p.waitEnded(ctx, existing); err != nil {
			return nil, fmt.Errorf("the claim was allocated anew: %w", err)
		}
		klog.FromContext(ctx).Info("Undoing an earlier preparation of the claim", "claim", klog.KObj(c), "phase", existing.Phase)
		if err := p.undo(existing); err != nil {
			return nil, err
		}
	}
	return p.prepareAnew(ctx, inv, c)
}

// prepareAgain answers for a claim that is prepared already. The spec may be
// gone, since its directory does not survive a reboot.
func (p *Preparer) prepareAgain(inv *Inventory, r state.Record, c *resourceapi.ResourceClaim) ([]kubeletplugin.Device, error) {
	if err := p.addUsers(&r, PodsOf(c)); err != nil {
		return nil, err
	}
	if err := p.check(inv, r.Grants); err != nil {
		return nil, err
	}
	there, err := p.Specs.Exists(r.CDISpec)
	if err != nil {
		return nil, err
	}
	if !there {
		if err := p.setUp(inv, r); err != nil {
			return nil, err
		}
	}
	return devices(r), nil
}

func (p *Preparer) prepareAnew(ctx context.Context, inv *Inventory, c *resourceapi.ResourceClaim) ([]kubeletplugin.Device, error) {
	grants, err := p.grants(ctx, inv, c)
	if err != nil {
		return nil, err
	}
	if err := p.check(inv, grants); err != nil {
		return nil, err
	}
	order, err := p.order(ctx, inv, c, grants)
	if err != nil {
		return nil, err
	}
	r := state.Record{
		Phase: state.Preparing, UID: c.UID, Namespace: c.Namespace, Name: c.Name, BootID: p.BootID, Pods: PodsOf(c),
		Grants: grants, Order: order, CDISpec: cdi.SpecName(c.UID),
	}
	if err := p.reserve(ctx, inv, c, r); err != nil {
		return nil, err
	}
	if err := p.effect(inv, r); err != nil {
		return nil, errors.Join(err, p.undo(r))
	}
	p.Listener.Changed()
	if lifted := liftedRequests(grants); len(lifted) > 0 {
		p.Listener.LimitsLifted(c, lifted)
	}
	return devices(r), nil
}

// reserve enters the claim among the others if the node serves it still, and it
// fits beside them and beside the pods that have none.
func (p *Preparer) reserve(ctx context.Context, inv *Inventory, c *resourceapi.ResourceClaim, r state.Record) error {
	reserved, err := p.Node.Reserved(ctx, inv.Machine)
	if err != nil {
		return err
	}
	return p.WithNodeLocked(ctx, func(records []state.Record) error {
		if err := served(p.Node.Published(ctx), r.Grants); err != nil {
			return err
		}
		if err := p.checkComplete(); err != nil {
			return err
		}
		if claim.ToleratesSwitch(c, p.Pool) && p.Node.Draining(ctx) {
			return errDraining
		}
		var others []usage.Claim
		for _, other := range records {
			if other.UID != r.UID {
				others = append(others, other.Usage())
			}
		}
		if err := usage.CheckOvercommit(others, reserved.Card, p.maxShares, r.Usage()); err != nil {
			p.Listener.ReleaseWanted(claimsBeside(others, r.Grants)...)
			return fmt.Errorf("refused, because a card would be promised twice: %w", err)
		}
		return p.Store.Put(r)
	})
}

// effect does what the record intends and then marks it as done.
func (p *Preparer) effect(inv *Inventory, r state.Record) error {
	if err := p.setUp(inv, r); err != nil {
		return err
	}
	r.Phase = state.Prepared
	return p.Store.Put(r)
}

// undo takes back whatever of the record's effects has happened. The record
// goes last, so that a failure leaves it for the next attempt.
func (p *Preparer) undo(r state.Record) error {
	if err := p.Specs.Remove(r.CDISpec); err != nil {
		return err
	}
	return p.Store.Delete(r.UID)
}

// Unprepare takes the claim's devices back. It is idempotent; a claim that was
// never prepared, or whose record cannot be read, is unprepared by it as well. It is
// refused while processes run of pods that use the claim: the kubelet asks before they
// have ended where a pod was deleted by force, and asks again.
func (p *Preparer) Unprepare(ctx context.Context, uid types.UID) error {
	return p.locked(ctx, uid, func() error {
		r, found, err := p.get(ctx, uid)
		if err != nil {
			return err
		}
		if !found {
			return p.release(strayRecord(uid))
		}
		if err := p.waitEnded(ctx, r); err != nil {
			return err
		}
		return p.release(r)
	})
}

// release takes a claim's devices back and tells that they are free.
func (p *Preparer) release(r state.Record) error {
	if err := p.undo(r); err != nil {
		return err
	}
	p.Listener.Changed()
	return nil
}

// strayRecord stands for a claim of which no record is left: the name of its
// spec follows from its UID.
func strayRecord(uid types.UID) state.Record {
	return state.Record{UID: uid, CDISpec: cdi.SpecName(uid)}
}

// Prepared returns the records of all claims, ordered by UID.
func (p *Preparer) Prepared(ctx context.Context) ([]state.Record, error) {
	records, err := p.Store.List()
	return records, p.reportDamaged(ctx, err)
}

// WithNodeLocked calls do with the records of all claims, ordered by UID. Until it
// returns no claim is entered among them, by this process or another one.
func (p *Preparer) WithNodeLocked(ctx context.Context, do func(prepared []state.Record) error) error {
	unlock, err := p.Store.LockNode(ctx)
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
	r, found, err := p.Store.Get(uid)
	return r, found, p.reportDamaged(ctx, err)
}

// reportDamaged tells the Listener of the Damaged errors in err and returns the
// rest.
func (p *Preparer) reportDamaged(ctx context.Context, err error) error {
	var rest []error
	for _, e := range flatten(err) {
		var damaged state.Damaged
		if errors.As(e, &damaged) {
			p.Listener.RecordDamaged(ctx, damaged)
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
		if g.Request != result.Request || g.Device != result.Device || g.Pool != result.Pool || g.ShareID != ptr.Deref(result.ShareID, "") {
			return false
		}
		i++
	}
	return i == len(results)
}

func devices(r state.Record) []kubeletplugin.Device {
	results := claim.Results(r.Grants)
	out := make([]kubeletplugin.Device, 0, len(results))
	for _, result := range results {
		g := result[0]
		d := kubeletplugin.Device{
			Requests:     []string{g.Request},
			PoolName:     g.Pool,
			DeviceName:   g.Device,
			CDIDeviceIDs: []string{cdi.QualifiedName(cdi.DeviceName(r.UID, g.Request, g.Device, g.ShareID))},
		}
		if g.ShareID != "" {
			shareID := g.ShareID
			d.ShareID = &shareID
		}
		out = append(out, d)
	}
	return out
}
