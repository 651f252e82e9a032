// SPDX-License-Identifier: Apache-2.0

package prepare

import (
	"context"
	"slices"

	"github.com/gpushare/dra-driver-gpushare/pkg/node/isolation"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/state"
)

// rollBack undoes the steps of a preparation that failed.
func (p *Preparer) rollBack(ctx context.Context, w *preparation) error {
	if !w.stored {
		return nil
	}
	// Isolation was set up for it, too.
	defer p.options.Changed.Send()
	// Also where the kubelet has given the call up.
	return p.undo(context.WithoutCancel(ctx), w.record, p.awaitMachine)
}

// undo takes back whatever of the record's effects has happened. The record
// goes last, so that a failure leaves it for the next attempt.
func (p *Preparer) undo(ctx context.Context, r state.Record, shown shown) error {
	unlock, err := p.lockTimeSlices(ctx, r)
	if err != nil {
		return err
	}
	defer unlock()
	if err := p.giveTimeSlicesBack(ctx, r); err != nil {
		return err
	}
	if err := p.unwrite(ctx, r, shown); err != nil {
		return err
	}
	if err := p.options.Store.Delete(r.UID); err != nil {
		return err
	}
	p.forgetReleased(r.UID)
	p.options.Listener.Released(r.UID)
	return nil
}

// unwrite is the undo of write.
func (p *Preparer) unwrite(ctx context.Context, r state.Record, shown shown) error {
	if err := p.options.Specs.Remove(r.CDISpec); err != nil {
		return err
	}
	if err := p.options.Metadata.Remove(r.UID); err != nil {
		return err
	}
	for _, e := range slices.Backward(r.Effects) {
		if e.Instance != nil {
			continue
		}
		if err := p.options.Isolation.Undo(isolation.Effect{Name: e.Name, GPU: e.GPU}); err != nil {
			return err
		}
	}
	return p.unmakeInstances(ctx, r, shown)
}
