// SPDX-License-Identifier: Apache-2.0

package prepare

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"k8s.io/klog/v2"

	"github.com/gpushare/dra-driver-gpushare/pkg/claim"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/isolation"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/state"
	"github.com/gpushare/dra-driver-gpushare/pkg/usage"
)

// A MIG instance that is made for a claim is an effect of its preparation. Its record says where it will be before
// anything is made, and whatever is found in that place later, of that profile, is the claim's: to undo it is to look
// again. So a kill at any moment leaves no instance that nobody knows of. The record goes when the GPUs were read
// without the instance: what is published uses both, and an instance without a record is somebody else's.

// effectInstance is the name of the effect.
const effectInstance = "mig-instance"

// seenLimit is how long it may take to read the GPUs after a change. The kubelet waits for 45 s.
const seenLimit = 20 * time.Second

// replaced reports whether the record's claim gets what is in the place now of what it was prepared with, for that is
// gone for good: MIG instances of an earlier boot, none of which survives a reboot, and GPUs. No container has any of
// it any more.
func (p *Preparer) replaced(ctx context.Context, inv *Inventory, r state.Record) (bool, error) {
	if p.madeBeforeReboot(r) || p.ofEarlierBoot(r) &&
		slices.ContainsFunc(r.Grants, func(g claim.Grant) bool { return g.GPU.Gone(inv.Machine) != "" }) {
		return true, nil
	}
	return p.replacedGPUs(ctx, inv, r)
}

// replacedGPUs reports whether others are in the place of GPUs that the record's claim was prepared with, as where a
// machine in a cloud was started on another host, and none of its pods has processes.
func (p *Preparer) replacedGPUs(ctx context.Context, inv *Inventory, r state.Record) (bool, error) {
	if !slices.ContainsFunc(r.Grants, func(g claim.Grant) bool { return g.GPU.Left(inv.Machine) }) {
		return false, nil
	}
	if user, err := p.InUse(r); user != "" || err != nil {
		return false, nil // its containers lack the GPU, and end
	}
	records, err := p.Prepared(ctx)
	if err != nil {
		return false, err
	}
	var others []claim.Grant
	for _, other := range othersOf(records, r.UID) {
		others = append(others, other.Grants...)
	}
	return claim.Replaced(r.Grants, others, inv.Machine), nil
}

// madeBeforeReboot reports whether MIG instances were made for the record's claim in an earlier boot. They have ended
// also where their UUIDs are there again: somebody else has made those since, whose they stay.
func (p *Preparer) madeBeforeReboot(r state.Record) bool {
	return p.ofEarlierBoot(r) &&
		slices.ContainsFunc(r.Grants, func(g claim.Grant) bool { return g.GPU.MIG != nil && g.GPU.MIG.Made })
}

func (p *Preparer) ofEarlierBoot(r state.Record) bool {
	return r.BootID != "" && r.BootID != p.options.BootID
}

// noteMade has those of the grants' instances count as made for the claim that have these UUIDs.
func noteMade(grants []claim.Grant, uuids []string) {
	for i := range grants {
		if g := &grants[i].GPU; g.MIG != nil && slices.Contains(uuids, g.UUID) {
			instance := *g.MIG
			instance.Made = true
			g.MIG = &instance
		}
	}
}

// madeInstances are the effects of making the grants' instances, whether these are there or not yet.
func madeInstances(grants []claim.Grant) []state.Effect {
	var effects []state.Effect
	for _, g := range grants {
		if g.GPU.MIG != nil && g.GPU.MIG.Made {
			effects = append(effects, state.Effect{Name: effectInstance, GPU: g.GPU.MIG.ParentUUID,
				Instance: &state.MadeInstance{Place: g.GPU.MIG.PlaceOf(), UUID: g.GPU.UUID}})
		}
	}
	return effects
}

// checkPlaces reports why an instance cannot be made. What is in its place now was not made for this claim.
func (p *Preparer) checkPlaces(ctx context.Context, w *preparation) error {
	for _, g := range w.record.Grants {
		if !g.GPU.Unmade() {
			continue
		}
		if p.options.Partitions == nil {
			return withReason(ReasonNotStartable, fmt.Errorf("%s is not there, and nobody here makes it", g.GPU))
		}
		there, err := p.options.Partitions.Instances(ctx, g.GPU.MIG.ParentUUID)
		if err != nil {
			return withReason(ReasonNotStartable, fmt.Errorf("%s: look whether its place is free: %w", g.GPU, err))
		}
		for _, i := range there {
			if i.PlaceOf().Overlaps(g.GPU.MIG.PlaceOf()) {
				records, unread := p.Prepared(ctx)
				err := fmt.Errorf("%s cannot be made: %s is in the way, which this claim has not made: the kubelet tries again by "+
					"itself; if it stays, delete the pod to have it placed again", g.GPU, i.Place())
				return withReason(ReasonNotStartable,
					heldBy{claimsBeside(othersOf(records, w.claim.UID), w.record.Grants), errors.Join(err, unread)})
			}
		}
	}
	return nil
}

// makeInstances makes the instances that the claim was granted and that are not there, one after the other.
func (p *Preparer) makeInstances(ctx context.Context, w *preparation) error {
	var made []string
	for i := range w.record.Grants {
		g := &w.record.Grants[i]
		if !g.GPU.Unmade() {
			continue
		}
		if err := p.makeInstance(ctx, w, g); err != nil {
			return fmt.Errorf("make %s: %w", g.GPU, err)
		}
		made = append(made, g.GPU.UUID)
	}
	err := p.awaitMachine(ctx, func(m *gpu.Machine) bool {
		return !slices.ContainsFunc(made, func(uuid string) bool {
			_, _, there := m.Instance(uuid)
			return !there
		})
	})
	if err != nil {
		return err
	}
	w.inventory = p.inventory.Load()
	if w.isolated, err = isolation.ForClaim(p.options.Isolation, w.record.UID, w.record.Grants,
		w.record.Order); err != nil {
		return err
	}
	return w.usable()
}

func (p *Preparer) makeInstance(ctx context.Context, w *preparation, grant *claim.Grant) error {
	g := &grant.GPU
	at := slices.IndexFunc(w.record.Effects, func(e state.Effect) bool {
		return e.Instance != nil && e.GPU == g.MIG.ParentUUID && e.Instance.Place == g.MIG.PlaceOf()
	})
	if err := p.checkLastID(ctx, w, *grant); err != nil {
		return err
	}
	gi, err := p.options.Partitions.MakeGPUInstance(ctx, g.MIG.ParentUUID, g.MIG.PlaceOf())
	if errors.Is(err, gpu.ErrPlaceTaken) {
		// What is there is somebody else's, and must not be taken for what was made here.
		w.record.Effects = slices.Delete(slices.Clone(w.record.Effects), at, at+1)
		return errors.Join(err, p.options.Store.Put(w.record))
	}
	if err != nil {
		return err
	}
	g.MIG.GI = gi
	if err := p.checkMade(ctx, w, *grant); err != nil {
		p.noteID(*g.MIG)
		return err
	}
	made, err := p.options.Partitions.MakeComputeInstance(ctx, g.MIG.ParentUUID, gi)
	if err != nil {
		return err
	}
	g.UUID, g.MemoryMiB, g.MIG.GI, g.MIG.CI = made.UUID, made.MemoryMiB, made.GI, made.CI
	w.record.Effects[at].Instance.UUID = made.UUID
	klog.FromContext(ctx).V(2).Info("Made a MIG instance", "claim", klog.KRef(w.record.Namespace, w.record.Name), "uuid",
		made.UUID, "instance", g.String())
	return p.options.Store.Put(w.record)
}

// checkMade reports that containers of another claim have the device nodes of an instance that was just made: those of
// an instance that is gone, and had its id. No container has what is being made, or destroyed, and none outlives a
// reboot.
func (p *Preparer) checkMade(ctx context.Context, w *preparation, made claim.Grant) error {
	records, err := p.Prepared(ctx)
	if err != nil {
		return err
	}
	others := othersOf(slices.DeleteFunc(records, func(r state.Record) bool {
		return r.Phase != state.Prepared || p.ofEarlierBoot(r)
	}), w.record.UID)
	if err := usage.CheckMade(others, w.record.Namespace, made); err != nil {
		return heldBy{claimsBeside(others, []claim.Grant{made}), err}
	}
	return nil
}

// unmakeInstances destroys the instances that were made for a record, as far as they are there. The GPUs are to be read
// without them before the record goes.
func (p *Preparer) unmakeInstances(ctx context.Context, r state.Record, shown shown) error {
	isMade := func(e state.Effect) bool { return e.Instance != nil }
	if !slices.ContainsFunc(r.Effects, isMade) || r.BootID != p.options.BootID {
		return nil // no instance survives a reboot
	}
	if r.Phase != state.Preparing {
		left, err := p.withoutLost(ctx, r, shown)
		if err != nil {
			return err
		}
		// From here on they are not the claim's any more, and nobody is to miss them.
		stored := r
		r.Effects, r.Phase = left, state.Preparing
		p.putReleased(ctx, stored, r)
	}
	made := slices.DeleteFunc(slices.Clone(r.Effects), func(e state.Effect) bool { return !isMade(e) })
	for _, e := range made {
		if err := p.unmakeInstance(ctx, r, e); err != nil {
			return err
		}
	}
	return shown(ctx, func(m *gpu.Machine) bool {
		return !slices.ContainsFunc(made, func(e state.Effect) bool { return has(m, e) })
	})
}

// withoutLost are the effects of a prepared claim's record but for instances that somebody else has destroyed: whatever
// is in their places now, or comes there before all others are destroyed, is not the claim's. The GPUs are to be read
// without those before they are forgotten.
func (p *Preparer) withoutLost(ctx context.Context, r state.Record, shown shown) ([]state.Effect, error) {
	var left []state.Effect
	var lost []string
	for _, e := range r.Effects {
		if e.Instance != nil && e.Instance.UUID != "" {
			there, err := p.instancesFor(ctx, r, e)
			if err != nil {
				return nil, err
			}
			if !slices.ContainsFunc(there, func(i gpu.Instance) bool { return isOf(i, e) }) {
				lost = append(lost, e.Instance.UUID)
				continue
			}
		}
		left = append(left, e)
	}
	return left, shown(ctx, func(m *gpu.Machine) bool {
		return !slices.ContainsFunc(lost, func(uuid string) bool {
			_, _, there := m.Instance(uuid)
			return there
		})
	})
}

// instancesFor are those of the GPU of which one was made for the record's claim.
func (p *Preparer) instancesFor(ctx context.Context, r state.Record, e state.Effect) ([]gpu.Instance, error) {
	there, err := p.options.Partitions.Instances(ctx, e.GPU)
	if err != nil {
		return nil, fmt.Errorf("look for the MIG instance that was made for claim %s: %w",
			klog.KRef(r.Namespace, r.Name), err)
	}
	return there, nil
}

// has reports whether the machine shows what may be an effect's instance.
func has(m *gpu.Machine, e state.Effect) bool {
	return slices.ContainsFunc(m.Partitioned, func(p gpu.Partitioned) bool {
		return p.UUID == e.GPU && slices.ContainsFunc(p.Instances, func(i gpu.Instance) bool { return isOf(i, e) })
	})
}

// isOf reports whether an instance is, or may be, the one that was made as the effect says. Another one may have come
// to be in its place. One whose UUID is gone, or cannot be read, would else stay for good.
func isOf(i gpu.Instance, e state.Effect) bool {
	return i.PlaceOf() == e.Instance.Place &&
		(e.Instance.UUID == "" || i.UUID == e.Instance.UUID || i.UUID == "" && !i.Recut)
}

func (p *Preparer) unmakeInstance(ctx context.Context, r state.Record, e state.Effect) error {
	name := klog.KRef(r.Namespace, r.Name)
	there, err := p.instancesFor(ctx, r, e)
	if err != nil {
		return err
	}
	at := slices.IndexFunc(there, func(i gpu.Instance) bool { return isOf(i, e) })
	if at < 0 {
		return nil
	}
	found := there[at]
	err = p.options.Partitions.Destroy(ctx, e.GPU, found.GI)
	if errors.Is(err, gpu.ErrInstanceInUse) {
		return withReason(ReasonInUse,
			fmt.Errorf("destroy the MIG instance %s (%s) of claim %s: %w: it stays held until that "+
				"program ends, and the kubelet tries again by itself; if no pod has it, a monitor does, such as DCGM: start that "+
				"again", found.Place(), found.UUID, name, err))
	}
	if err != nil {
		return fmt.Errorf("destroy the MIG instance %s (%s) of claim %s: %w", found.Place(), found.UUID, name, err)
	}
	klog.FromContext(ctx).V(2).Info("Destroyed a MIG instance", "claim", name, "uuid", found.UUID, "instance",
		found.Place())
	return nil
}

// shown has the GPUs read until they show something, or says why they do not.
type shown func(ctx context.Context, shows func(*gpu.Machine) bool) error

// errStillShown is that the GPUs were not read since they were changed.
var errStillShown = errors.New("the GPUs were not read again since their MIG instances were changed")

// awaitMachine waits until the GPUs show something. Who reads them must not wait for the claim that waits here.
func (p *Preparer) awaitMachine(ctx context.Context, shows func(*gpu.Machine) bool) error {
	ctx, cancel := context.WithTimeoutCause(ctx, seenLimit, errStillShown)
	defer cancel()
	for {
		read := p.read.Next()
		if p.showsNow(ctx, shows) == nil {
			return nil
		}
		select {
		case <-read:
		case <-ctx.Done():
			return fmt.Errorf("%w: the kubelet tries again by itself; if this stays, see the node's Events", context.Cause(ctx))
		}
	}
}

// showsNow does not wait. Where the GPUs do not show it, they are read again soon. GPUs that were never read show
// nothing wrong.
func (p *Preparer) showsNow(_ context.Context, shows func(*gpu.Machine) bool) error {
	inv := p.inventory.Load()
	if inv == nil || shows(inv.Machine) {
		return nil
	}
	p.options.Rescan()
	return errStillShown
}
