// SPDX-License-Identifier: Apache-2.0

package publish

import (
	"cmp"
	"context"
	"fmt"
	"reflect"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/klog/v2"

	"github.com/gpushare/dra-driver-gpushare/pkg/mode"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/cluster"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/isolation"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/state"
)

// restore finds out, once and before the first pass, what devices were last published as. Without a checkpoint
// the claims that are allocated tell the mode: each names its devices in its own
// way. What pods hold depends on when the last device plugin left.
func (p *Publisher) restore(ctx context.Context) error {
	s, err := p.known(ctx)
	if err != nil {
		return err
	}
	kept, ok, unread := p.State.Node()
	if unread != nil {
		klog.FromContext(ctx).Error(unread, "Going by the node's labels and claims")
		kept.DevicePlugin = true // what cannot be read may have said so
	}
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
	stored, err := p.stored(ctx)
	if err != nil {
		return fmt.Errorf("look up what the node's devices were published as: %w", err)
	}
	// A checkpoint may not say, for each mode, how the devices were isolated.
	if modes := remembered.Published.ServedModes(); remembered.Published != "" && len(remembered.Isolation) != len(modes) {
		records, err := s.prepared()
		if err != nil {
			return err
		}
		if remembered.Isolation, err = isolationOf(modes, records, stored, p.Isolation); err != nil {
			return err
		}
	}
	p.restoreConflicts(stored)
	if !remembered.DevicePlugin && remembered.DevicePluginLeft.IsZero() {
		remembered.DevicePluginLeft = s.leftNow()
	}
	if !ok || !reflect.DeepEqual(remembered, kept) {
		if err := p.State.PutNode(remembered); err != nil {
			return err
		}
	}
	p.checkpoint, p.restored = remembered, true
	p.Pods.SetLeft(remembered.DevicePluginLeft)
	return nil
}

// isolationOf is by what the users of GPUs are kept apart in the modes: as claims
// were prepared, failing that as the stored devices show it, failing that as they would be now.
func isolationOf(modes []mode.Mode, prepared []state.Record, stored []resourceapi.ResourceSlice,
	backends isolation.Backends) (map[mode.Mode]string, error) {
	told := map[mode.Mode]string{}
	for _, r := range prepared {
		for _, g := range r.Grants {
			told[g.Mode] = cmp.Or(told[g.Mode], g.Isolation)
		}
	}
	shown := cluster.IsolationOf(stored)
	out := map[mode.Mode]string{}
	for _, m := range modes {
		if out[m] = cmp.Or(told[m], shown[m]); out[m] != "" {
			continue
		}
		backend, err := backends.For(m)
		if err != nil {
			return nil, err
		}
		out[m] = backend.Name()
	}
	return out, nil
}
