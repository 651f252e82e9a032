// SPDX-License-Identifier: Apache-2.0

package publish

import (
	"context"
	"fmt"
	"reflect"
	"strings"

	"github.com/gpushare/dra-driver-gpushare/pkg/mode"
)

// restore finds out, once, what devices were last published as. Without a checkpoint
// the claims that are allocated tell the mode: each names its devices in its own
// way.
func (p *Publisher) restore(ctx context.Context, s snapshot) error {
	kept, ok := p.CheckpointFile.Load(ctx)
	remembered := kept
	if !ok {
		found, err := p.allAllocations(ctx, s)
		if err != nil {
			return err
		}
		remembered.Published = found.mode
		// It may have served the GPUs before all its devices became unhealthy.
		remembered.DevicePlugin = kept.DevicePlugin || len(s.node.withDevices) > 0
	}
	if err := p.restoreIsolation(ctx, s, &remembered); err != nil {
		return err
	}
	if err := p.restoreConflicts(ctx); err != nil {
		return err
	}
	if !remembered.DevicePlugin && remembered.DevicePluginLeft.IsZero() {
		remembered.DevicePluginLeft = p.leftNow(s.node)
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
func (p *Publisher) restoreIsolation(ctx context.Context, s snapshot, m *Checkpoint) error {
	modes := m.Published.ServedModes()
	if m.Published == "" || len(m.Isolation) == len(modes) {
		return nil
	}
	stored, err := p.stored(ctx)
	if err != nil {
		return fmt.Errorf("look up how the published GPUs were isolated: %w", err)
	}
	records, err := s.prepared()
	if err != nil {
		return err
	}
	m.Isolation, err = isolationOf(modes, records, stored, p.Isolation)
	return err
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
	for _, m := range o.Mode.ServedModes() {
		if o.Isolation[m] != from.Isolation[m] {
			by = append(by, fmt.Sprintf("%s by %s", m, o.Isolation[m]))
		}
	}
	return fmt.Sprintf("mode %s with isolation of %s", o.Mode, strings.Join(by, ", "))
}
