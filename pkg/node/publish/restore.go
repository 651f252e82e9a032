// SPDX-License-Identifier: Apache-2.0

package publish

import (
	"context"
	"fmt"
	"reflect"
	"strings"

	"github.com/gpushare/dra-driver-gpushare/pkg/mode"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/state"
)

// restore finds out, once, what devices were last published as. Without a checkpoint
// the claims that are allocated tell the mode: each names its devices in its own
// way.
func (p *Publisher) restore(ctx context.Context, node *nodeFacts) error {
	if p.restored {
		return nil
	}
	kept, ok := p.CheckpointFile.Load(ctx)
	remembered := kept
	if !ok {
		found, err := p.allAllocations(ctx)
		if err != nil {
			return err
		}
		remembered.Published = found.mode
	}
	if err := p.restoreIsolation(ctx, &remembered); err != nil {
		return err
	}
	if !remembered.DevicePlugin && remembered.DevicePluginLeft.IsZero() {
		remembered.DevicePluginLeft = p.leftNow(node)
	}
	if !ok || !reflect.DeepEqual(remembered, kept) {
		if err := p.CheckpointFile.store(remembered); err != nil {
			return err
		}
	}
	p.checkpoint, p.restored = remembered, true
	p.Pods.SetLeft(remembered.DevicePluginLeft)
	return nil
}

// restoreIsolation completes a checkpoint that does not say, for each mode, how the
// devices were isolated.
func (p *Publisher) restoreIsolation(ctx context.Context, m *Checkpoint) error {
	modes := m.Published.Personalities()
	if m.Published == "" || len(m.Isolation) == len(modes) {
		return nil
	}
	stored, err := p.stored(ctx)
	if err != nil {
		return fmt.Errorf("look up how the published GPUs were isolated: %w", err)
	}
	records, err := p.Claims.Prepared(ctx)
	if err != nil {
		return err
	}
	m.Isolation, err = isolationOf(modes, records, stored, p.Isolation.For)
	return err
}

// save keeps what is about to be published, and what was asked for.
func (p *Publisher) save(ctx context.Context, w desired, step mode.Step, ready bool) error {
	m := p.checkpoint
	if w.mode != "" {
		m.asks(w.asked)
	}
	switch {
	case ready:
		m.offers(step.Offer)
	case !step.Equal(m.offer()):
		// The offer before was left, and this one cannot be published.
		m.offers(mode.Offer{})
	}
	m.Closed = step.Closed && (p.checkpoint.Closed || p.closedFor() >= mode.Settle)
	// Without the file claims are refused, so it must not stay lost.
	if _, kept := p.CheckpointFile.Load(ctx); kept && reflect.DeepEqual(m, p.checkpoint) {
		return nil
	}
	store := p.CheckpointFile.store
	if !m.offer().Equal(p.checkpoint.offer()) && p.checkpoint.Published != "" {
		store = func(m Checkpoint) error { return p.saveOtherOffer(ctx, m) }
	}
	if err := store(m); err != nil {
		return err
	}
	p.checkpoint = m
	return nil
}

// saveOtherOffer stores that something else is published than before. From then on claims
// of the mode before are refused; one that was prepared since the last look keeps
// the offer before instead.
func (p *Publisher) saveOtherOffer(ctx context.Context, m Checkpoint) error {
	return p.Claims.WithNodeLocked(ctx, func(prepared []state.Record) error {
		for _, r := range prepared {
			if firstAllocated(r.Grants) >= 0 {
				before := describe(p.checkpoint.offer(), m.offer())
				return fmt.Errorf("claim %s/%s was prepared in the moment before the GPUs changed from %s to %s: they stay in "+
					"%s until it ends",
					r.Namespace, r.Name, before, describe(m.offer(), p.checkpoint.offer()), before)
			}
		}
		return p.CheckpointFile.store(m)
	})
}

// describe says what an offer is, with what tells it from another one.
func describe(o, from mode.Offer) string {
	switch {
	case o.Mode == "":
		return "offering none"
	case o.Mode != from.Mode || o.Equal(from):
		return "mode " + string(o.Mode)
	}
	var by []string
	for _, m := range o.Mode.Personalities() {
		if o.Isolation[m] != from.Isolation[m] {
			by = append(by, fmt.Sprintf("%s by %s", m, o.Isolation[m]))
		}
	}
	return fmt.Sprintf("mode %s with isolation of %s", o.Mode, strings.Join(by, ", "))
}
