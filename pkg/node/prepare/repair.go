// SPDX-License-Identifier: Apache-2.0

package prepare

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/gpushare/dra-driver-gpushare/internal/backoff"
	"github.com/gpushare/dra-driver-gpushare/pkg/claim"
	"github.com/gpushare/dra-driver-gpushare/pkg/mode"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/isolation"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/state"
)

const (
	// listFirst and listMost bound how often all claims are listed again that cannot
	// all be entered.
	listFirst = 10 * time.Second
	listMost  = 10 * time.Minute
)

// Repairer puts up again what somebody removed while containers run. Call its Repair
// from one goroutine.
type Repairer struct {
	Preparer *Preparer
	Now      func() time.Time

	// failed is why records could not be repaired, tried again from again on; tries is how often in a row.
	failed error
	again  time.Time
	tries  int
}

// Repair looks once. CDI specs, which every start of a container needs, are written
// again; claims whose records were lost are entered again, as the API server knows
// them. A spec without a record is removed only when the API server knows no claim for
// it. As long as that does not answer, everything stays as it is. Where nothing is
// amiss nobody is asked. Errors concern single claims, or what could not be asked; they
// are returned until they are gone.
func (r *Repairer) Repair(ctx context.Context) error {
	p := r.Preparer
	if err := p.options.Store.EnsureDir(); err != nil {
		return err
	}
	errs := []error{p.repairSpecs(ctx)}
	if complete, err := p.options.Store.Complete(); err != nil || complete && r.Now().Before(r.again) {
		return errors.Join(append(errs, err, r.failed)...)
	}
	if r.failed = p.repairRecords(ctx); r.failed == nil {
		r.tries, r.again = 0, r.Now()
	} else {
		r.tries++
		r.again = r.Now().Add(backoff.Doubling{Least: listFirst, Most: listMost}.After(r.tries))
	}
	return errors.Join(append(errs, r.failed)...)
}

// repairSpecs writes the specs again that are gone.
func (p *Preparer) repairSpecs(ctx context.Context) error {
	records, err := p.Prepared(ctx)
	errs := []error{err}
	for _, r := range records {
		there, err := p.written(r)
		errs = append(errs, err)
		if err != nil || there || r.Phase != state.Prepared {
			continue
		}
		klog.FromContext(ctx).Info("The CDI spec of a prepared claim is gone, writing it again",
			"claim", klog.KRef(r.Namespace, r.Name), "claimUID", r.UID)
		errs = append(errs, p.recoverRecord(ctx, r.UID))
	}
	return errors.Join(errs...)
}

// repairRecords enters claims that were prepared and have no record, and removes specs
// that are nobody's.
func (p *Preparer) repairRecords(ctx context.Context) error {
	complete, err := p.options.Store.Complete()
	if err != nil {
		return err
	}
	strays, err := p.straySpecs(ctx)
	if err != nil || complete && len(strays) == 0 {
		return err
	}
	inv := p.inventory.Load()
	if inv == nil {
		return fmt.Errorf("what is prepared on the node cannot be found out: %w", errNoInventory)
	}
	claims, err := p.options.Cluster.AllocatedClaims(ctx)
	if err != nil {
		return fmt.Errorf("find out whose the claims are that have no record here; their CDI specs stay meanwhile: %w", err)
	}
	var errs []error
	known := map[types.UID]bool{}
	for _, c := range claims {
		known[c.UID] = true
		if err := p.rebuild(ctx, inv, c); err != nil {
			errs = append(errs, fmt.Errorf("enter claim %s/%s again, whose record was lost: %w", c.Namespace, c.Name, err))
		}
	}
	for _, uid := range strays {
		if !known[uid] {
			errs = append(errs, p.removeStraySpec(ctx, uid))
		}
	}
	left, err := p.straySpecs(ctx)
	if err != nil {
		return errors.Join(append(errs, err)...)
	}
	left = slices.DeleteFunc(left, func(uid types.UID) bool { return !slices.Contains(strays, uid) })
	p.unenterable.Store(&left)
	if ctx.Err() != nil {
		return errors.Join(append(errs, context.Cause(ctx))...)
	}
	// One claim that cannot be entered, as with a GPU that is gone, must not keep
	// the others' GPUs from being used. It is tried again for as long as it has a spec.
	if err := p.options.Store.SetComplete(); err != nil {
		return errors.Join(append(errs, err)...)
	}
	// Who has waited for it (see Known) looks again.
	p.options.Changed.Send()
	return errors.Join(errs...)
}

// removeStraySpec looks again for a record: it may be there by now.
func (p *Preparer) removeStraySpec(ctx context.Context, uid types.UID) error {
	return p.locked(ctx, uid, func(_ state.Record, found bool) error {
		if found {
			return nil
		}
		klog.FromContext(ctx).Info("Removing the CDI spec of a claim that neither the node nor the API server knows",
			"claimUID", uid)
		return p.undoLost(ctx, strayRecord(uid))
	})
}

// undoLost undoes what was prepared for a claim whose record is lost; r stands for it. The CDI spec alone tells which
// MIG instances were made for it, so it goes after them.
func (p *Preparer) undoLost(ctx context.Context, r state.Record) error {
	_, made, err := p.options.Specs.Devices(r.CDISpec)
	if err != nil {
		return err
	}
	inv := p.inventory.Load()
	if len(made) > 0 && inv == nil {
		return fmt.Errorf("find the MIG instances that were made for claim %s, to destroy them: %w",
			klog.KRef(r.Namespace, r.Name), errNoInventory)
	}
	// In this phase no record is written of them.
	instances := state.Record{UID: r.UID, Namespace: r.Namespace, Name: r.Name, BootID: p.options.BootID,
		Phase: state.Preparing}
	for _, uuid := range made {
		parent, i, there := inv.Machine.Instance(uuid)
		if !there && len(inv.Machine.Faults) > 0 {
			return fmt.Errorf("find the MIG instance %s that was made for claim %s, to destroy it: it may be one of a GPU "+
				"that cannot be read: %v: this is tried again; if it stays, see docs/troubleshooting.md#gpus-that-are-left-out",
				uuid, klog.KRef(r.Namespace, r.Name), inv.Machine.Faults)
		}
		if there {
			instances.Effects = append(instances.Effects, state.Effect{Name: effectInstance, GPU: parent.UUID,
				Instance: &state.MadeInstance{Place: i.PlaceOf(), UUID: uuid}})
		}
	}
	if err := p.unmakeInstances(ctx, instances, p.awaitMachine); err != nil {
		return err
	}
	return p.release(ctx, r)
}

// rebuild enters a claim that has no record, if it was prepared here.
func (p *Preparer) rebuild(ctx context.Context, inv *Inventory, c *resourceapi.ResourceClaim) error {
	return p.locked(ctx, c.UID, func(_ state.Record, found bool) error {
		if found {
			return nil
		}
		// It may have been released, and unprepared, since it was listed.
		now, err := p.options.Cluster.Claim(ctx, c.Namespace, c.Name)
		if apierrors.IsNotFound(err) {
			return nil
		}
		if err != nil {
			return err
		}
		if now.UID != c.UID || now.Status.Allocation == nil {
			return nil
		}
		return p.rebuildLocked(ctx, inv, now)
	})
}

func (p *Preparer) rebuildLocked(ctx context.Context, inv *Inventory, c *resourceapi.ResourceClaim) error {
	pods, err := p.users(ctx, c)
	if err != nil {
		return err
	}
	r, err := p.lostRecord(ctx, inv, c, pods)
	if err != nil {
		return err
	}
	names, made, err := p.options.Specs.Devices(r.CDISpec)
	if err != nil {
		return err
	}
	noteMade(r.Grants, made)
	w, unknown := p.preparationOf(inv, r)
	r.Effects = append(madeInstances(r.Grants), effects(w.isolated)...)
	switch {
	case slices.ContainsFunc(r.Grants, func(g claim.Grant) bool { return g.GPU.Unmade() }):
		// Its instance is to be made, or has gone.
		return p.undoLost(ctx, r)
	case len(names) > 0 && slices.Equal(names, deviceNames(r)):
	case len(names) == 0 && slices.ContainsFunc(pods, started):
		if unknown == nil {
			unknown = w.isolated.SetUp(ctx)
		}
		if unknown == nil {
			unknown = p.writeSpec(w)
		}
		if unknown != nil {
			return unknown
		}
	default:
		// It is to be prepared yet, with all that is checked then; a spec would be of
		// what the claim was allocated before.
		return p.undoLost(ctx, r)
	}
	klog.FromContext(ctx).Info("Entering a prepared claim again whose record was lost",
		"claim", klog.KObj(c), "claimUID", c.UID)
	if err := p.options.Store.Put(r); err != nil {
		return err
	}
	p.options.Changed.Send()
	return nil
}

// lostRecord is the record of a claim that was prepared, as far as the claim and its
// pods tell.
func (p *Preparer) lostRecord(
	ctx context.Context, inv *Inventory, c *resourceapi.ResourceClaim, pods []*corev1.Pod,
) (state.Record, error) {
	grants, err := p.allocated(c, inv.Machine)
	if err != nil {
		return state.Record{}, err
	}
	if err := p.isolateAsPublished(ctx, grants); err != nil {
		return state.Record{}, err
	}
	if capped(grants) {
		if _, err := p.use(grants, c, pods...); err != nil {
			return state.Record{}, err
		}
	}
	r := p.recordOf(c, state.Prepared, grants)
	if len(grants) > 1 {
		r.Order, err = p.order(ctx, inv, c, grants)
	}
	return r, err
}

// isolateAsPublished has the grants isolated as the node's GPUs are published: as the node's state says, failing that
// as the API server shows it, failing that as they would be now.
func (p *Preparer) isolateAsPublished(ctx context.Context, grants []claim.Grant) error {
	node, _, _ := p.options.Store.Node() // one that cannot be read says as little as none
	var shown map[mode.Mode]string
	if slices.ContainsFunc(grants, func(g claim.Grant) bool { return node.Isolation[g.Mode] == "" }) {
		var err error
		if shown, err = p.options.Cluster.PublishedIsolation(ctx); err != nil {
			return err
		}
	}
	for i, g := range grants {
		backend, err := isolation.Find(p.options.Isolation, cmp.Or(node.Isolation[g.Mode], shown[g.Mode]), g.Mode)
		if err != nil {
			return err
		}
		isolateBy(&grants[i], backend)
	}
	return nil
}

// started reports whether a container of the pod was started: not before all its claims
// had been prepared.
func started(pod *corev1.Pod) bool {
	if claim.Ended(pod) {
		return false
	}
	return slices.ContainsFunc(slices.Concat(pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses),
		func(s corev1.ContainerStatus) bool {
			// Of a pod that is being deleted the claims may be unprepared already.
			return s.ContainerID != "" && (pod.DeletionTimestamp == nil || s.State.Running != nil)
		})
}
