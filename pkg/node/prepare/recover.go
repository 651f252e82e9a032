// SPDX-License-Identifier: Apache-2.0

package prepare

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/gpushare/dra-driver-gpushare/pkg/claim"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/state"
)

// Recover brings the node back to a clean state after the plugin, or the node,
// was stopped at any point: preparations that were cut off are undone and specs
// of prepared claims are written again with the current base edits. It asks nobody
// but the node's disk, and the driver where MIG instances were being made; what only the API server can tell is
// Repair's. It can run while another instance serves claims. Errors concern single claims; the others are recovered.
func (p *Preparer) Recover(ctx context.Context) error {
	return errors.Join(p.removeTemporaryFiles(ctx), p.recoverRecords(ctx))
}

func (p *Preparer) removeTemporaryFiles(ctx context.Context) error {
	uids, err := p.options.Store.Unfinished()
	errs := []error{err}
	for _, uid := range uids {
		errs = append(errs, p.locked(ctx, uid, func(state.Record, bool) error { return p.options.Store.CleanUp(uid) }))
	}
	return errors.Join(errs...)
}

func (p *Preparer) recoverRecords(ctx context.Context) error {
	records, err := p.Prepared(ctx)
	errs := []error{err}
	for _, r := range records {
		err := p.recoverRecord(ctx, r.UID)
		if errors.Is(err, errUnseen) {
			p.options.Rescan() // the inventory with it brings Recover again
			err = nil
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// errUnseen is that another process has made a MIG instance since the GPUs were read, or that it is gone: who publishes
// the devices tells that.
var errUnseen = errors.New("the GPUs do not show the MIG instance that was made for it: if this stays, delete the " +
	"pod, so that it is placed again")

// recoverRecord reads the record again: it may have changed before the claim
// was locked.
func (p *Preparer) recoverRecord(ctx context.Context, uid types.UID) error {
	return p.locked(ctx, uid, func(r state.Record, found bool) error {
		if !found {
			return nil
		}
		return p.recoverLocked(ctx, r)
	})
}

func (p *Preparer) recoverLocked(ctx context.Context, r state.Record) error {
	if r.Phase == state.Preparing {
		klog.FromContext(ctx).Info("Undoing a preparation that was cut off",
			"claim", klog.KRef(r.Namespace, r.Name), "claimUID", r.UID)
		err := p.undo(ctx, r, p.showsNow)
		if errors.Is(err, errStillShown) {
			return nil // the inventory without it brings Recover again
		}
		return err
	}
	if p.madeBeforeReboot(r) {
		klog.FromContext(ctx).Info("Undoing a preparation whose MIG instances ended with the node's last boot",
			"claim", klog.KRef(r.Namespace, r.Name), "claimUID", r.UID)
		return p.release(ctx, r)
	}
	inv := p.inventory.Load()
	if inv == nil {
		return nil
	}
	w, err := p.preparationOf(inv, r)
	switch {
	case err != nil:
	case slices.ContainsFunc(r.Grants, func(g claim.Grant) bool {
		return g.GPU.MIG != nil && g.GPU.MIG.Made && g.GPU.Gone(inv.Machine) != ""
	}):
		err = errUnseen
	default:
		err = p.writeSpec(w)
	}
	if err == nil {
		return nil
	}
	foreign := p.dropForeign(ctx, inv, r)
	if replaced, _ := p.replacedGPUs(ctx, inv, r); replaced && foreign == nil {
		return nil // the spec is written when a pod comes back, of what is in the place then
	}
	return fmt.Errorf("write the CDI spec of claim %s/%s again: %w", r.Namespace, r.Name, errors.Join(err, foreign))
}

// dropForeign removes a CDI spec that could not be written again if it brings the device node of another GPU. Minor
// numbers are given out again when the NVIDIA driver is loaded, and the kubelet starts containers again without asking:
// they must not start with what another claim has. Repair writes the spec when it can be.
func (p *Preparer) dropForeign(ctx context.Context, inv *Inventory, r state.Record) error {
	brings, err := p.options.Specs.Nodes(r.CDISpec)
	if err != nil || len(brings) == 0 {
		return err
	}
	for _, uuid := range otherGPUs(inv.Machine, r.Grants) {
		edits, err := inv.Base.GPU(uuid)
		if err != nil {
			continue // no container gets it either
		}
		for _, node := range edits.DeviceNodes {
			if slices.Contains(brings, node.Path) {
				klog.FromContext(ctx).Info("Removing the CDI spec of a claim: it brings a device node that is another GPU's now",
					"claim", klog.KRef(r.Namespace, r.Name), "claimUID", r.UID, "node", node.Path, "uuid", uuid)
				return p.options.Specs.Remove(r.CDISpec)
			}
		}
	}
	return nil
}

// otherGPUs are what containers can be given of the GPUs of which nothing was granted.
func otherGPUs(m *gpu.Machine, grants []claim.Grant) []string {
	others := *m
	of := func(g gpu.GPU) bool {
		return slices.ContainsFunc(grants, func(granted claim.Grant) bool { return granted.GPU.Parent() == g.UUID })
	}
	others.GPUs = slices.DeleteFunc(slices.Clone(m.GPUs), of)
	others.Partitioned = slices.DeleteFunc(slices.Clone(m.Partitioned), func(p gpu.Partitioned) bool { return of(p.GPU) })
	return usableUUIDs(&others)
}

// UnprepareSame unprepares the claim if its record is still this one: it may have
// been allocated and prepared again since the record was read.
func (p *Preparer) UnprepareSame(ctx context.Context, r state.Record) error {
	return p.locked(ctx, r.UID, func(now state.Record, found bool) error {
		if !found || !reflect.DeepEqual(now, r) {
			return nil
		}
		return p.release(ctx, now)
	})
}
