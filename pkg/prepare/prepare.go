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

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"
	"k8s.io/klog/v2"
	"k8s.io/utils/ptr"
	specs "tags.cncf.io/container-device-interface/specs-go"

	"github.com/gpushare/dra-driver-gpushare/cdi"
	"github.com/gpushare/dra-driver-gpushare/pkg/claim"
	"github.com/gpushare/dra-driver-gpushare/pkg/compat/taken"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
	"github.com/gpushare/dra-driver-gpushare/pkg/isolation"
	"github.com/gpushare/dra-driver-gpushare/pkg/mode"
	"github.com/gpushare/dra-driver-gpushare/pkg/slices"
	"github.com/gpushare/dra-driver-gpushare/pkg/state"
)

// Store keeps the records; *state.Store implements it.
type Store interface {
	LockClaim(ctx context.Context, uid types.UID) (unlock func(), err error)
	LockNode(ctx context.Context) (unlock func(), err error)
	Get(uid types.UID) (state.Record, bool, error)
	Put(r state.Record) error
	Delete(uid types.UID) error
	List() ([]state.Record, error)
	Unfinished() ([]types.UID, error)
	CleanUp(uid types.UID) error
	// EnsureDir puts up again what was removed; it is not Complete then, until
	// SetComplete says that every prepared claim has its record.
	EnsureDir() error
	Complete() (bool, error)
	SetComplete() error
}

// Specs keeps the CDI specs; cdi.Dir implements it.
type Specs interface {
	Write(name string, s *specs.Spec) error
	Exists(name string) (bool, error)
	Remove(name string) error
	// Claims are those that have a spec, or the temporary file of one.
	Claims() ([]types.UID, error)
	// Devices are the names of a spec's devices; none if there is no such spec, or it
	// cannot be read.
	Devices(name string) ([]string, error)
}

// BaseEdits are the edits that do not depend on the claim; *cdi.Base
// implements it.
type BaseEdits interface {
	// Common is what every container with a card needs.
	Common() specs.ContainerEdits
	// Card is what gives a container the card.
	Card(uuid string) (specs.ContainerEdits, error)
	// Check reports whether everything that the card's edits refer to exists.
	Check(uuid string) error
}

// Isolation finds back ends; *isolation.Registry implements it.
type Isolation interface {
	// For is the back end that serves the mode.
	For(m mode.Mode) (isolation.Backend, error)
	// ByName is the back end of that name.
	ByName(name string) (isolation.Backend, error)
}

// Inventory is what the node has to hand out, read before the first claim.
type Inventory struct {
	Machine *gpu.Machine
	Base    BaseEdits
}

// Options are what a Preparer works with.
type Options struct {
	// Pool is the name of the pool this node publishes.
	Pool  string
	Store Store
	Specs Specs
	// BootID identifies the boot of the node.
	BootID string
	// Isolation finds the back ends.
	Isolation Isolation
	// Pods are the pods that use the claim and still exist. It is asked once, when
	// a claim with limits is prepared.
	Pods func(ctx context.Context, c *resourceapi.ResourceClaim) ([]*corev1.Pod, error)
	// Claim is another claim of these pods. It is asked for those that a container
	// uses beside a claim with limits.
	Claim func(ctx context.Context, namespace, name string) (*resourceapi.ResourceClaim, error)
	// Published is what the node's devices are published as, the zero Offer if
	// none are or it is not known. A claim that is not prepared yet is refused if
	// the mode does not serve it, and isolated as offered. It is also asked with the
	// node locked, so that what changes it under WithNodeLocked changes it for all
	// claims at once.
	Published func(ctx context.Context) mode.Offer
	// Allocated are the claims of the cluster that are allocated devices of the pool.
	// It is asked when what was prepared is not known (see Repair).
	Allocated func(ctx context.Context) ([]*resourceapi.ResourceClaim, error)
	// OfferedIsolation is by what the users of a card that was offered in the mode were
	// kept apart. It is asked for claims that are prepared already.
	OfferedIsolation func(ctx context.Context, m mode.Mode) (string, error)
	// Closed says that the node waits to change what its devices are published as, and has
	// for long enough that claims which were allocated before are prepared: one that is
	// not is refused if it tolerates that the devices are closed, for it may have been
	// allocated since. It may be left out.
	Closed func(ctx context.Context) bool
	// SetsOrder says whether a container of the claim's pods gets its cards from
	// this claim alone and leaves their order to the driver. It is asked once,
	// when a claim for several linked cards is prepared.
	SetsOrder func(ctx context.Context, c *resourceapi.ResourceClaim) (bool, error)
	// Unclaimed is what pods without a claim hold of the machine's cards. It is asked
	// before a claim is prepared that is not yet.
	Unclaimed func(ctx context.Context, m *gpu.Machine) (taken.Taken, error)
	// Running says whether a pod has processes on this node. What it does not know is
	// an error: then the kubelet is believed, and the Sweeper releases nothing.
	Running func(pod types.UID) (bool, error)
	// Users are pods that use a claim beside those that it was reserved for when it was
	// prepared.
	Users func(namespace, name string) []types.UID
	// OnContended is told claims that somebody wants released: others were allocated
	// what they hold, or the kubelet asked for it while their pods still run.
	OnContended func(uids ...types.UID)
	// OnLifted is told the requests of a claim that was prepared without its
	// limits.
	OnLifted func(c *resourceapi.ResourceClaim, requests []string)
	// Lifters is what can lift limits; the zero value is whoever writes a claim.
	Lifters claim.Lifters
	// OnKept is told the requests of a claim that is being prepared whose limits stay
	// because of Lifters, though the claim or a container says otherwise.
	OnKept func(c *resourceapi.ResourceClaim, requests []string)
	// OnChange is called after each change of what is prepared.
	OnChange func()
	// OnDamaged is told of every record that had to be set aside.
	OnDamaged func(ctx context.Context, err state.Damaged)
}

// Preparer prepares and unprepares claims. Its methods may be called
// concurrently, also from several processes that share the state directory.
type Preparer struct {
	Options
	inventory         atomic.Pointer[Inventory]
	isolationDisabled atomic.Bool
}

// New returns a Preparer that refuses claims until SetInventory is called. Running, Users
// and OnContended may be left out: then it is not known which pods run.
func New(o Options) *Preparer {
	if o.Running == nil {
		o.Running = func(types.UID) (bool, error) { return false, errRunningUnknown }
	}
	if o.Closed == nil {
		o.Closed = func(context.Context) bool { return false }
	}
	if o.Users == nil {
		o.Users = func(string, string) []types.UID { return nil }
	}
	if o.OnContended == nil {
		o.OnContended = func(...types.UID) {}
	}
	return &Preparer{Options: o}
}

// SetInventory replaces what the node has to hand out.
func (p *Preparer) SetInventory(inv *Inventory) { p.inventory.Store(inv) }

// SetIsolationDisabled sets whether the limits of everything that is prepared
// from now on are lifted, as if each request asked for it.
func (p *Preparer) SetIsolationDisabled(disabled bool) { p.isolationDisabled.Store(disabled) }

var errNoInventory = errors.New("the cards of this node have not been read yet, or there are none: see the node's Events")

var errClosed = errors.New("the node waits to change its mode and takes no further claims, whatever they tolerate: it is tried again until the mode has changed; delete the pod to have it placed again")

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
	p.OnChange()
	if lifted := liftedRequests(grants); len(lifted) > 0 {
		p.OnLifted(c, lifted)
	}
	return devices(r), nil
}

// reserve enters the claim among the others if the node serves it still, and it
// fits beside them and beside the pods that have none.
func (p *Preparer) reserve(ctx context.Context, inv *Inventory, c *resourceapi.ResourceClaim, r state.Record) error {
	unclaimed, err := p.Unclaimed(ctx, inv.Machine)
	if err != nil {
		return err
	}
	return p.WithNodeLocked(ctx, func(records []state.Record) error {
		if err := served(p.Published(ctx), r.Grants); err != nil {
			return err
		}
		if err := p.checkComplete(); err != nil {
			return err
		}
		if claim.ToleratesSwitch(c, p.Pool) && p.Closed(ctx) {
			return errClosed
		}
		var others []claim.Holder
		for _, other := range records {
			if other.UID != r.UID {
				others = append(others, other.Holder())
			}
		}
		if err := claim.CheckFits(others, unclaimed.Card, p.maxShares, r.Holder()); err != nil {
			p.OnContended(holdersBeside(others, r.Grants)...)
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
	p.OnChange()
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

// reportDamaged hands the Damaged errors in err to OnDamaged and returns the
// rest.
func (p *Preparer) reportDamaged(ctx context.Context, err error) error {
	var rest []error
	for _, e := range flatten(err) {
		var damaged state.Damaged
		if errors.As(e, &damaged) {
			p.OnDamaged(ctx, damaged)
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
		if result.Driver != slices.DriverName {
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
