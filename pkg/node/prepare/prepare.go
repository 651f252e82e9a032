// SPDX-License-Identifier: Apache-2.0

// Package prepare makes the devices of a claim usable on the node and takes them back:
// resolve → validate → reserve → write → done. What is to happen is recorded before it
// does, and that it has happened afterwards, so that a kill between any two steps leaves,
// after Recover, either a prepared claim or no trace of one.
package prepare

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"
	"k8s.io/klog/v2"

	"github.com/gpushare/dra-driver-gpushare/internal/signal"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/claim"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
	"github.com/gpushare/dra-driver-gpushare/pkg/held"
	"github.com/gpushare/dra-driver-gpushare/pkg/mode"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/isolation"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/state"
	"github.com/gpushare/dra-driver-gpushare/pkg/usage"
)

// Preparer prepares and unprepares claims. Its methods may be called
// concurrently, also from several processes that share the state directory.
type Preparer struct {
	options           Options
	inventory         atomic.Pointer[Inventory]
	isolationDisabled atomic.Bool
	timeSlice         atomic.Pointer[v1alpha1.TimeSlice]
	// read is sent when there is another inventory.
	read signal.Broadcast
	mu   sync.Mutex
	// released are records that could not be written, by UID. No other process knows these, nor placeIDs.
	released map[types.UID]released
	placeIDs map[gpuPlace]placeID
	// unenterable are the claims with a CDI spec of which Repair could make no record.
	unenterable atomic.Pointer[[]types.UID]
}

// New returns a Preparer that refuses claims until SetInventory is called.
func New(o Options) *Preparer {
	if o.MPS == nil {
		o.MPS = noMPS{}
	}
	return &Preparer{options: o, released: map[types.UID]released{}, placeIDs: map[gpuPlace]placeID{}}
}

// Machine is what the node has to hand out; nil where it has not been read.
func (p *Preparer) Machine() *gpu.Machine {
	if inv := p.inventory.Load(); inv != nil {
		return inv.Machine
	}
	return nil
}

// SetInventory replaces what the node has to hand out.
func (p *Preparer) SetInventory(inv *Inventory) {
	p.inventory.Store(inv)
	p.read.Send()
}

// SetIsolationDisabled sets whether the limits of everything that is prepared
// from now on are switched off, as if each request asked for it.
func (p *Preparer) SetIsolationDisabled(disabled bool) { p.isolationDisabled.Store(disabled) }

var errNoInventory = errors.New("the GPUs of this node have not been read yet, or there are none: see the node's " +
	"Events")

var errDraining = errors.New("the node waits to change its mode and takes no further claims, whatever they tolerate: " +
	"it is tried again until the mode has changed; delete the pod to have it placed again")

// Result is what came of a claim.
type Result struct {
	// Devices are what the kubelet is told; none if the claim was not prepared.
	Devices []kubeletplugin.Device
	// LimitsOff are the requests that were prepared without their limits, LimitsKept those whose limits
	// stay because of Options.LimitsOffBy, though the claim or a container says otherwise. Both are told
	// where the claim was not prepared already.
	LimitsOff, LimitsKept []string
	// Instances are the requests by which a container has several MIG instances; told likewise.
	Instances []string
}

// Prepare makes the claim's devices usable and returns their CDI ids. It is
// idempotent. An error says what is wrong in words for the pod's owner: the
// kubelet shows it in the pod's Events. HeldBy tells whose release would help.
func (p *Preparer) Prepare(ctx context.Context, c *resourceapi.ResourceClaim) (Result, error) {
	inv := p.inventory.Load()
	if inv == nil {
		return Result{}, withReason(ReasonNoGPUs, errNoInventory)
	}
	if err := waitKnown(ctx, p.checkComplete); err != nil {
		return Result{}, err
	}
	unlock, err := p.options.Store.LockClaim(ctx, c.UID)
	if err != nil {
		return Result{}, err
	}
	defer unlock()
	// Whoever had the claim locked may have made its instances meanwhile.
	inv = p.inventory.Load()
	existing, found, err := p.get(ctx, c.UID)
	if err != nil {
		return Result{}, err
	}
	if found && existing.Phase == state.Prepared && SameAllocation(existing, c) {
		replaced, err := p.replaced(ctx, inv, existing)
		if err != nil {
			return Result{}, err
		}
		if !replaced {
			return p.prepareAgain(ctx, inv, existing, c)
		}
	}
	if found {
		if err := p.undoEarlier(ctx, existing); err != nil {
			return Result{}, err
		}
		// What was made for the claim is gone, and the GPUs were read again since.
		inv = p.inventory.Load()
	}
	w := &preparation{claim: c, inventory: inv}
	for _, step := range []func(context.Context, *preparation) error{p.resolve, p.validate, p.reserve, p.write, p.done} {
		if err := step(ctx, w); err != nil {
			return Result{LimitsKept: w.result.LimitsKept}, errors.Join(err, p.rollBack(ctx, w))
		}
	}
	w.result.Devices = devices(w.record)
	return w.result, nil
}

// preparation is a claim on its way through the steps, with what each of them needs.
type preparation struct {
	claim     *resourceapi.ResourceClaim
	inventory *Inventory
	// published is what the node offered when the claim was resolved.
	published mode.Offer
	// record is what is to be prepared, from resolve on; it is stored from reserve on.
	record state.Record
	stored bool
	// isolated is what holds the containers to the record's grants.
	isolated isolation.Claim
	// pods use the claim. They are read for claims with limits only.
	pods []*corev1.Pod
	// result is what is told of it, from resolve on; its devices come last.
	result Result
}

// makesInstances reports whether MIG instances are still to be made for the claim.
func (w *preparation) makesInstances() bool {
	return slices.ContainsFunc(w.record.Grants, func(g claim.Grant) bool { return g.GPU.Unmade() })
}

// preparationOf is that of a claim of which there is a record already, with the indices that its GPUs have now.
func (p *Preparer) preparationOf(inv *Inventory, r state.Record) (*preparation, error) {
	r.Grants = claim.Current(r.Grants, inv.Machine)
	isolated, err := isolation.ForClaim(p.options.Isolation, r.UID, r.Grants, r.Order)
	return &preparation{inventory: inv, record: r, isolated: isolated}, err
}

// resolve finds out what the claim was allocated, with all decided that a later
// preparation of the same claim has to repeat. It has no effects, and no undo.
func (p *Preparer) resolve(ctx context.Context, w *preparation) error {
	node, _, err := p.options.Store.Node()
	if err != nil {
		return withReason(ReasonNotServed, err)
	}
	w.published = node.Offer()
	grants, err := p.grants(w, w.claim)
	if err != nil {
		return withReason(ReasonInvalid, err)
	}
	if capped(grants) {
		if w.pods, err = p.users(ctx, w.claim); err != nil {
			return withReason(ReasonInvalid,
				fmt.Errorf("find out which containers use the claim, and whether its limits are switched off: %w", err))
		}
		if w.result.LimitsKept, err = p.use(grants, w.claim, w.pods...); err != nil {
			return withReason(ReasonInvalid, err)
		}
		w.result.LimitsOff = withoutLimits(grants)
	}
	w.record = p.recordOf(w.claim, state.Preparing, grants)
	if len(grants) > 1 {
		if w.record.Order, err = p.order(ctx, w.inventory, w.claim, grants); err != nil {
			return err
		}
		w.result.Instances = severalInstances(grants)
	}
	if w.isolated, err = isolation.ForClaim(p.options.Isolation, w.claim.UID, grants, w.record.Order); err != nil {
		return withReason(ReasonNotStartable, err)
	}
	w.record.Effects = append(madeInstances(grants), effects(w.isolated)...)
	return nil
}

// validate reports why a container that starts now would lack something: a device node,
// or what is to hold it to its share. It has no effects, and no undo.
func (p *Preparer) validate(ctx context.Context, w *preparation) error {
	if len(w.pods) > 0 {
		err := p.validateNumber(w)
		if err == nil {
			err = p.validateContainers(ctx, w)
		}
		if err != nil {
			return withReason(ReasonInvalid, err)
		}
	}
	if err := w.usable(); err != nil {
		return withReason(ReasonNotStartable, err)
	}
	if w.makesInstances() {
		return p.checkPlaces(ctx, w)
	}
	return nil
}

// reserve enters the claim among the others if the node serves it still, and it
// fits beside them and beside what pods without a claim have. Its undo is to delete the record.
func (p *Preparer) reserve(ctx context.Context, w *preparation) error {
	// A record may turn out to be damaged just now. It is made again soon.
	return waitKnown(ctx, func() error {
		reserved, err := p.options.Node.Reserved(ctx, w.inventory.Machine)
		if err != nil {
			return err
		}
		return p.WithNodeLocked(ctx, func(records []state.Record) error { return p.enter(w, records, reserved) })
	})
}

// enter puts the claim's record beside those of all others, with the node locked. reserved is what pods without a claim
// have.
func (p *Preparer) enter(w *preparation, records []state.Record, reserved held.Reserved) error {
	// It may have changed since the claim was resolved, and cannot while the node is locked.
	now, _, err := p.options.Store.Node()
	if err != nil {
		return withReason(ReasonNotServed, err)
	}
	if err := served(now.Offer(), w.record.Grants); err != nil {
		return withReason(ReasonNotServed, err)
	}
	if err := p.knownBeside(records, w.claim.UID); err != nil {
		return err
	}
	if now.Closed && claim.ToleratesSwitch(w.claim, p.options.Pool) {
		return withReason(ReasonNotServed, errDraining)
	}
	if err := w.checkNodeDaemon(records, reserved); err != nil {
		return withReason(ReasonInUse, err)
	}
	others := othersOf(records, w.claim.UID)
	if err := usage.CheckOvercommit(others, reserved.GPU, w.record.Usage()); err != nil {
		return heldBy{claimsBeside(others, w.record.Grants), fmt.Errorf("refused, because a GPU would be promised twice; if "+
			"others keep it, delete the pods that use the claim: %w", err)}
	}
	err = p.options.Store.Put(w.record)
	w.stored = err == nil
	return err
}

// write makes the claim's MIG instances, if it has such as are made on demand, then what the containers' isolation
// needs on the host, which is not the claim's alone, and then the CDI spec that refers to it. Its undo is unwrite.
func (p *Preparer) write(ctx context.Context, w *preparation) error {
	if w.makesInstances() {
		if err := p.makeInstances(ctx, w); err != nil {
			return withReason(ReasonNotStartable, err)
		}
	}
	if err := p.setUp(ctx, w); err != nil {
		return err
	}
	return p.writeSpec(w)
}

// done marks the claim as prepared. From then on Unprepare undoes it.
func (p *Preparer) done(_ context.Context, w *preparation) error {
	w.record.Phase = state.Prepared
	if err := p.options.Store.Put(w.record); err != nil {
		w.record.Phase = state.Preparing
		return err
	}
	p.options.Changed.Send()
	return nil
}

// prepareAgain answers for a claim that is prepared already. The spec may be
// gone, since its directory does not survive a reboot. Neither does what isolation needs on
// the host, also where Recover has written the spec.
func (p *Preparer) prepareAgain(
	ctx context.Context, inv *Inventory, r state.Record, c *resourceapi.ResourceClaim,
) (Result, error) {
	w, err := p.preparationOf(inv, r)
	if err == nil {
		err = w.usable()
	}
	if err != nil {
		return Result{}, withReason(ReasonNotStartable, err)
	}
	// From here on containers of this boot may have what the record holds.
	if err := p.noteUsers(&r, p.options.BootID, podsOf(c)); err != nil {
		return Result{}, err
	}
	if err := p.setUp(ctx, w); err != nil {
		return Result{}, err
	}
	there, err := p.written(r)
	if err == nil && !there {
		err = p.writeSpec(w)
	}
	if err != nil {
		return Result{}, err
	}
	return Result{Devices: devices(r)}, nil
}

// undoEarlier undoes a preparation that was cut off, or was for an earlier allocation.
func (p *Preparer) undoEarlier(ctx context.Context, r state.Record) error {
	if err := p.waitEnded(ctx, r); err != nil {
		return fmt.Errorf("the claim was allocated again: %w", err)
	}
	klog.FromContext(ctx).Info("Undoing an earlier preparation of the claim",
		"claim", klog.KRef(r.Namespace, r.Name), "phase", r.Phase)
	return p.undo(ctx, r, p.awaitMachine)
}

// Unprepare takes the claim's devices back. It is idempotent; a claim that was
// never prepared, or whose record cannot be read, is unprepared by it as well. It is
// refused while processes run of pods that use the claim: the kubelet asks before they
// have ended where a pod was deleted by force, and asks again.
func (p *Preparer) Unprepare(ctx context.Context, uid types.UID) error {
	return p.locked(ctx, uid, func(r state.Record, found bool) error {
		if !found {
			return p.undoLost(ctx, strayRecord(uid))
		}
		if err := p.waitEnded(ctx, r); err != nil {
			return err
		}
		return p.release(ctx, r)
	})
}

// release takes a claim's devices back and tells that they are free.
func (p *Preparer) release(ctx context.Context, r state.Record) error {
	if err := p.undo(ctx, r, p.awaitMachine); err != nil {
		return err
	}
	p.options.Changed.Send()
	return nil
}
